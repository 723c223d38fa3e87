"""Topics in the memory of one process, for tests: gone with it, and not seen by any other.

    with spark_kbatch.open("memory://orders", create=True) as cluster:
        cluster.create_topic("events")

store    the place, as the port of `store/` asks for it
"""
