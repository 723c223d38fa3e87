"""The one door of Spark and the command line, and the public classes for what lies in a folder.

stores   the store at a path or an address; what reads and writes are opened with
cluster  the public class `Cluster`
"""
