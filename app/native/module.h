/* The parts of the extension; each adds its types and functions to the module. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "slot_names.h"

/* Find where the instances of a type have these slots, of which the last is followed by NULL; -1 with an error where one
is none, which names the C file that asks: `app/native/slots.py` has them all. */
int find_slots(PyTypeObject *type, const char *const *names, Py_ssize_t *places, const char *file);

/* Names of attributes, and texts, that are used again and again: `texts.add` is "add". */
#define EACH_TEXT(TEXT) \
    TEXT(add, "add") TEXT(apply_back_pressure, "_apply_back_pressure") TEXT(begin_message, "begin_message") \
    TEXT(buffered, "buffered") TEXT(call_soon, "call_soon") TEXT(calls, "calls") TEXT(cancel, "cancel") \
    TEXT(close_if_drained, "_close_if_drained") TEXT(closing, "closing") TEXT(count, "count") TEXT(deliver, "_deliver") \
    TEXT(draining, "draining") TEXT(flush, "flush") TEXT(gzip, "gzip") TEXT(identity, "identity") TEXT(name, "name") \
    TEXT(open, "_open") TEXT(refuse, "_refuse") TEXT(remove, "remove") TEXT(report, "_report") \
    TEXT(schedule, "schedule") TEXT(start_timer, "start_timer") TEXT(submit, "submit")
#define TEXT_FIELD(field, text) PyObject *field;
extern struct texts { EACH_TEXT(TEXT_FIELD) } texts;

/* Add a type to the module, and keep a reference to it in `kept`, unless that is NULL; -1 with an error. */
int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept);

/* Each returns 0, or -1 with a Python error. */
int add_mapping(PyObject *module);
int add_messages(PyObject *module);
int add_ends(PyObject *module);
int add_http_requests(PyObject *module);
int add_json(PyObject *module);
int add_calls(PyObject *module);
int add_strings(PyObject *module);
int add_counted(PyObject *module);

/* Go past an element of a BYTES tensor, to which `element` points then; return its size, -1 where the bytes end in it. */
Py_ssize_t next_string(const unsigned char **at, const unsigned char *end, const unsigned char **element);
