"""Conditions on rows, which reads take as `where`: text -> tree -> what is left out and what is kept.

    driver  text -> parsed -> bound to the columns of rows and their types -> what need not be read
    task    the bound tree -> rows for which it is TRUE

What is accepted means what it means in Spark. What Spark would cast, or would decide by a setting of the session, is
refused with what to write in its place.

Module by module:

    text        the grammar, and its errors
    tree        a condition as a tree
    binding     names and literals become columns and values of their types
    evaluation  which rows of Arrow columns a condition is true for
    pruning     partitions, offsets and times outside of which no row can match

Source: Spark sql/api/.../SqlBaseParser.g4, sql/catalyst/.../expressions/predicates.scala.
"""
