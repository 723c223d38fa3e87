"""The pages of `kbatch ui` and of `kbatch serve --http`, and what Prometheus scrapes there.

    app         the application: its routes, how long visitors wait, and what it answers when something fails
    site        what all pages share: the cluster, templates, and what was found a moment ago
    access      who may look: tokens, hosts, and the headers that keep a page's text text
    serving     the HTTP server, in a thread
    topics      pages of topics, of one topic and its partitions
    storage     pages of log dirs, replicas and garbage; of a bucket's ledger
    records     pages of a topic's records, and of one record
    groups      pages of consumer groups: members, offsets, lag
    commits     pages of the commits of Spark jobs
    history     samples over time of how fast topics grow, and how far groups are behind
    charts      the geometry of charts, which templates draw as SVG
    metrics     what Prometheus scrapes: names and values

Pages are made on the server, and have no scripts. They read a place by its public `Cluster`, change nothing, and never
take more than a bounded part of what there is. Loaded only by those commands: the extra `ui` brings Starlette, Jinja2
and uvicorn.
"""
