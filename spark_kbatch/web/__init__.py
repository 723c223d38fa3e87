"""What a place of topics and a server tell to others over HTTP.

metrics     what Prometheus scrapes: names, values, and how seldom they are looked up
"""
