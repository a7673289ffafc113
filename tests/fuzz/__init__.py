from nereid.internals import load_internals

load_internals()  # the client library too, which is beside the server's packages here
