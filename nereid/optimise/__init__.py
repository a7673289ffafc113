"""`nereid optimise`: cheaper forms of a model, checked on recorded requests before a client meets one."""
