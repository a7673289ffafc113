/* The type `CountedSubmit`, and the sinks that it gives requests: counts what clients are answered, as `CountedTarget` of
`app/cost/tap.py` does, which judges whatever is not plain. */
#include "slots.h"

#include <stddef.h>
#include <string.h>

#include "structmember.h"

enum counted_type { REQUEST, ANSWER, TENSOR, COUNTED_TYPES };
enum { REQUESTS, ROWS, BYTES_IN, BYTES_OUT, FIGURES };

static const char *const *const slot_names[COUNTED_TYPES] = {Q_NAMES, A_NAMES, T_NAMES};
static PyTypeObject *sink_type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call_function;
    PyObject *submit, *client, *steps, *received, *counts;
    PyTypeObject *types[COUNTED_TYPES]; /* which their modules keep */
    Py_ssize_t slots[COUNTED_TYPES][MOST_SLOTS];
    int batched;
} CountedSubmit;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call_function;
    CountedSubmit *owner;
    PyObject *name, *request, *sink;
} CountedSink;

static PyObject *get(const CountedSubmit *self, enum counted_type type, PyObject *object, int number)
{
    return slot(object, self->slots[type][number]);
}

/* Add the bytes of tensors; 0 where they are no plain ones. */
static int add_bytes(const CountedSubmit *self, PyObject *tensors, long long *nbytes)
{
    if (tensors == NULL || !PyTuple_CheckExact(tensors))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); i++) {
        PyObject *tensor = PyTuple_GET_ITEM(tensors, i);
        Py_ssize_t size = Py_TYPE(tensor) == self->types[TENSOR] ? PyObject_Size(get(self, TENSOR, tensor, T_DATA)) : -1;
        if (size < 0)
            return 0;
        *nbytes += size;
    }
    return 1;
}

/* Read the rows of a batch: the first dimension of its first tensor; 0 where it is none. */
static int get_rows(const CountedSubmit *self, PyObject *inputs, long long *rows)
{
    PyObject *shape = PyTuple_GET_SIZE(inputs) == 0 ? NULL : get(self, TENSOR, PyTuple_GET_ITEM(inputs, 0), T_SHAPE);
    return shape != NULL && PyTuple_CheckExact(shape) && PyTuple_GET_SIZE(shape) > 0 &&
           get_number(PyTuple_GET_ITEM(shape, 0), rows);
}

/* Count the answer to a request; 0, with nothing counted and perhaps an error, where Python has to. */
static int count(const CountedSubmit *self, PyObject *name, PyObject *request, PyObject *response)
{
    PyObject *kept = PyDict_GetItemWithError(self->counts, name), *inputs = get(self, REQUEST, request, Q_INPUTS);
    long long figures[FIGURES] = {[REQUESTS] = 1, [ROWS] = 1};
    if (kept == NULL || !PyByteArray_CheckExact(kept) || PyByteArray_GET_SIZE(kept) != sizeof figures ||
        !add_bytes(self, inputs, figures + BYTES_IN) ||
        !add_bytes(self, get(self, ANSWER, response, A_OUTPUTS), figures + BYTES_OUT) ||
        (self->batched && !get_rows(self, inputs, figures + ROWS)))
        return 0;
    long long sums[FIGURES];
    memcpy(sums, PyByteArray_AS_STRING(kept), sizeof sums);
    for (int i = 0; i < FIGURES; i++)
        sums[i] += figures[i];
    memcpy(PyByteArray_AS_STRING(kept), sums, sizeof sums);
    return 1;
}

static PyObject *receive(PyObject *object, PyObject *const *arguments, size_t flags, PyObject *names)
{
    CountedSink *self = (CountedSink *)object;
    if (PyVectorcall_NARGS(flags) != 1 || names != NULL || self->sink == NULL) {
        PyErr_SetString(PyExc_TypeError, "a response");
        return NULL;
    }
    const CountedSubmit *owner = self->owner;
    PyObject *response = arguments[0];
    if (Py_TYPE(response) == owner->types[ANSWER]) {
        int counts = get(owner, ANSWER, response, A_FINAL) == Py_True && get(owner, ANSWER, response, A_FAILURE) == Py_None;
        if (!counts || count(owner, self->name, self->request, response))
            return PyObject_CallOneArg(self->sink, response);
        PyErr_Clear(); /* Python finds what is wrong */
    }
    PyObject *all[] = {self->name, self->request, self->sink, response};
    return PyObject_Vectorcall(owner->received, all, 4, NULL);
}

static int traverse_sink(CountedSink *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    Py_VISIT(self->request);
    Py_VISIT(self->sink);
    return 0;
}

static int clear_sink(CountedSink *self)
{
    Py_CLEAR(self->request);
    Py_CLEAR(self->sink);
    return 0;
}

static void delete_sink(CountedSink *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_sink(self);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->name);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* Return the name of the client of this moment, "" for nobody. */
static PyObject *name_of_client(const CountedSubmit *self)
{
    PyObject *client = PyObject_CallNoArgs(self->client);
    if (client == NULL)
        return NULL;
    PyObject *name = client == Py_None ? PyUnicode_FromStringAndSize(NULL, 0) : PyObject_GetAttr(client, texts.name);
    Py_DECREF(client);
    return name;
}

static PyObject *submit(PyObject *object, PyObject *const *arguments, size_t flags, PyObject *names)
{
    CountedSubmit *self = (CountedSubmit *)object;
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL || Py_TYPE(arguments[0]) != self->types[REQUEST]) {
        PyErr_SetString(PyExc_TypeError, "a request and a sink");
        return NULL;
    }
    PyObject *chain = get(self, REQUEST, arguments[0], Q_CHAIN);
    if (chain == NULL || PyObject_IsTrue(chain) != 0)
        return PyObject_Vectorcall(self->steps, arguments, 2, NULL);
    PyObject *name = name_of_client(self);
    CountedSink *sink = name == NULL ? NULL : PyObject_GC_New(CountedSink, sink_type);
    if (sink == NULL) {
        Py_XDECREF(name);
        return NULL;
    }
    sink->call_function = receive;
    sink->owner = (CountedSubmit *)Py_NewRef(object);
    sink->name = name;
    sink->request = Py_NewRef(arguments[0]);
    sink->sink = Py_NewRef(arguments[1]);
    PyObject_GC_Track(sink);
    PyObject *all[] = {arguments[0], (PyObject *)sink};
    PyObject *call = PyObject_Vectorcall(self->submit, all, 2, NULL);
    Py_DECREF(sink);
    return call;
}

static PyObject *new_submit(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *keyword_names[] = {"types", "submit", "client", "steps", "received", "counts", "batched", NULL};
    PyObject *given[COUNTED_TYPES], *kept[5];
    int batched;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "(O!O!O!)OOOOO!p", keyword_names, &PyType_Type, given, &PyType_Type,
                                     given + 1, &PyType_Type, given + 2, kept, kept + 1, kept + 2, kept + 3, &PyDict_Type,
                                     kept + 4, &batched))
        return NULL;
    CountedSubmit *self = (CountedSubmit *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call_function = submit;
    PyObject **places[] = {&self->submit, &self->client, &self->steps, &self->received, &self->counts};
    for (int i = 0; i < 5; i++)
        *places[i] = Py_NewRef(kept[i]);
    self->batched = batched;
    for (int i = 0; i < COUNTED_TYPES; i++) {
        self->types[i] = (PyTypeObject *)given[i];
        if (find_slots(self->types[i], slot_names[i], self->slots[i], __FILE__) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static int traverse_submit(CountedSubmit *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->submit);
    Py_VISIT(self->client);
    Py_VISIT(self->steps);
    Py_VISIT(self->received);
    Py_VISIT(self->counts);
    return 0;
}

static void delete_submit(CountedSubmit *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyObject *made[] = {self->submit, self->client, self->steps, self->received, self->counts};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        Py_XDECREF(made[i]);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef sink_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CountedSink, call_function), READONLY, NULL},
    {0},
};

static PyType_Slot sink_slots[] = {
    {Py_tp_dealloc, delete_sink},
    {Py_tp_traverse, traverse_sink},
    {Py_tp_clear, clear_sink},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, sink_members},
    {0, NULL},
};

static PyType_Spec sink_spec = {
    .name = "app.native.extension.CountedSink",
    .basicsize = sizeof(CountedSink),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = sink_slots,
};

static PyMemberDef submit_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CountedSubmit, call_function), READONLY, NULL},
    {0},
};

/* Without `clear`: whatever it is in a cycle with breaks it. */
static PyType_Slot submit_slots[] = {
    {Py_tp_new, new_submit},
    {Py_tp_dealloc, delete_submit},
    {Py_tp_traverse, traverse_submit},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, submit_members},
    {0, NULL},
};

static PyType_Spec submit_spec = {
    .name = "app.native.extension.CountedSubmit",
    .basicsize = sizeof(CountedSubmit),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = submit_slots,
};

int add_counted(PyObject *module)
{
    return add_type(module, &sink_spec, &sink_type) < 0 ? -1 : add_type(module, &submit_spec, NULL);
}
