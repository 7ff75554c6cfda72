"""The tests, from pure to real.

    unit      pure parts: tables with ids
    script    stories: events, and the actions that must follow, with their causes as data; rewriteable
    sim       the real core and the real loop of each worker under simulated hosts, network and time; a script and
              faults from a seed; invariants after every step; then the faults stop and the run must end. Mutants of the
              core and of the loop must be caught. Restart mode: sim/restart_world.py. sim/random_events.py: events in
              any order, and what the core keeps against a scan
    rpc       real gRPC in one process
    fuzz      each gRPC method under messages that are valid, mutated or none: nothing comes of them. Properties of
              codecs and limits (hypothesis): messages, journal, rendezvous, host lines, the sampler's split
    process   real driver, agents, workers, sshd; signals, cut links, kills in every order
    torch     Gloo over loopback and over links that are cut: groups, severing, state, sync, sampler
    attacks   live runs attacked from outside: another account, another host, holders of tokens, hostile scripts

A cut link is made of network namespaces, which takes root and iproute2; the dashboard's queries are asked of a real
Prometheus server. Without these those tests are skipped; where CI is set they fail (needs.py).
"""
