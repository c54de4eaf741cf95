"""The collector of freezethaw's own learning curves: real networks, trained many at once."""
