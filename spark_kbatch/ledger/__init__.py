"""A ledger: a dense sequence of entries, each of which says what happened in a cluster, once; and their fold.

The state at n is the fold of entries 0 to n. All here is pure: no files, objects, threads or
clocks. Where entries lie, and who decides which is the next one, is said by the place that has
the ledger; now that is a bucket.

    bottom up
    names             the names of a ledger's objects, and what their numbers say
    checksummed_json  objects of one line of JSON and its checksum
    codec             what is stored, by the annotations of fields
    extents           where the batches of a partition are
    entries           the kinds of entries, and their format
    image             the fold: what exists, and who committed what
    state             with where the records of a bucket lie
    checkpoint_format states that are stored, so that not all entries are read
    commits           the commits of jobs and mirrors, as entries tell of them
    audit             entries in words
"""
