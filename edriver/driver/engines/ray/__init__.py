"""Ray: hosts are the nodes of a Ray cluster, and agents are child processes of Ray actors.

    driver -- cluster.py -- connection.py ==socket pair== bridge.py --Ray-- agent_actor.py on each node -- agent

Ray ends a process that is connected to it when its GCS has been away for a minute, blocks threads until then, and
replaces signal handlers. So a child process of the driver, the bridge, is Ray's client, and the driver never imports
Ray. Start with cluster.py; nodes.py holds the decisions, which are pure.
"""
