"""The library inside the user's process.

It never imports `edriver.driver` or `edriver.agent`. From the top down: `rounds`, `state`, `sync` and `sampler`,
`copies` and `group`, `backend` and `watch`; the modules in this folder are what all of them share.
"""
