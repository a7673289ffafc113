/* The type `PlainCheck`: whether a request is plainly right for a model's configuration. */
#include "plain_check.h"

#include <string.h>

enum { INPUTS = 8, RANK = 8 };

struct input {
    PyObject *name, *datatype;
    long long dims[RANK];
    Py_ssize_t rank, itemsize; /* itemsize: 0 for strings */
    int required;
};

struct PlainCheck {
    PyObject_HEAD
    Messages *messages;
    PyObject *outputs; /* frozenset of names */
    Py_ssize_t max_batch, count;
    struct input inputs[INPUTS];
};

static int is_same(PyObject *first, PyObject *second)
{
    return first == second || (PyUnicode_CheckExact(first) && PyUnicode_CheckExact(second) &&
                               PyUnicode_GET_LENGTH(first) == PyUnicode_GET_LENGTH(second) &&
                               PyUnicode_Compare(first, second) == 0);
}

/* Whether each requested output is one of the model's, and none is there twice. */
static int are_outputs_plain(const PlainCheck *self, PyObject *outputs)
{
    Py_ssize_t count = PyTuple_GET_SIZE(outputs);
    if (count > INPUTS)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *output = PyTuple_GET_ITEM(outputs, i);
        PyObject *name = Py_TYPE(output) == self->messages->types[OUTPUT] ? field(self->messages, OUTPUT, output, W_NAME) : NULL;
        if (name == NULL || !PyUnicode_CheckExact(name) || PySet_Contains(self->outputs, name) != 1)
            return 0;
        for (Py_ssize_t j = 0; j < i; j++)
            if (is_same(name, field(self->messages, OUTPUT, PyTuple_GET_ITEM(outputs, j), W_NAME)))
                return 0;
    }
    return 1;
}

/* Read a shape; return its rank, -1 for one that is not of ordinary sizes. */
static Py_ssize_t read_shape(PyObject *shape, long long *sizes)
{
    if (shape == NULL || !PyTuple_CheckExact(shape) || PyTuple_GET_SIZE(shape) > RANK)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); i++) {
        int overflow = 0;
        PyObject *size = PyTuple_GET_ITEM(shape, i);
        sizes[i] = PyLong_CheckExact(size) ? PyLong_AsLongLongAndOverflow(size, &overflow) : -1;
        if (overflow || sizes[i] < 0 || sizes[i] > UINT32_MAX)
            return -1;
    }
    return PyTuple_GET_SIZE(shape);
}

static Py_ssize_t length(PyObject *data)
{
    Py_ssize_t size = data == NULL ? -1 : PyBytes_CheckExact(data) ? PyBytes_GET_SIZE(data) : PyObject_Size(data);
    PyErr_Clear();
    return size;
}

/* Whether data are so many strings, and nothing behind them. */
static int are_strings(PyObject *data, long long count)
{
    Py_buffer view;
    if (data == NULL || PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return 0;
    }
    const unsigned char *at = view.buf, *end = at + view.len, *element;
    while (count > 0 && next_string(&at, end, &element) >= 0)
        count--;
    PyBuffer_Release(&view);
    return count == 0 && at == end;
}

/* Return the elements of a shape, multiplied by `itemsize`; 0 for none and where it does not plainly fit. */
static long long product(const struct input *input, const long long *sizes, Py_ssize_t rank, long long itemsize)
{
    if (rank != input->rank)
        return 0;
    for (Py_ssize_t i = 0; i < rank; i++) {
        if ((input->dims[i] != sizes[i] && input->dims[i] != -1) || (sizes[i] > 0 && itemsize > INT64_MAX / sizes[i]))
            return 0;
        itemsize *= sizes[i];
    }
    return itemsize;
}

/* Return the rows of a tensor, and add its bytes to those of others; 0 for one that needs every check. */
static long long rows_of(const PlainCheck *self, const struct input *input, PyObject *tensor, Py_ssize_t *nbytes)
{
    long long sizes[RANK], rows = 1;
    int batched = self->max_batch > 0;
    Py_ssize_t rank = read_shape(field(self->messages, TENSOR, tensor, T_SHAPE), sizes);
    PyObject *data = field(self->messages, TENSOR, tensor, T_DATA);
    if (rank < batched || !is_same(field(self->messages, TENSOR, tensor, T_DATATYPE), input->datatype))
        return 0;
    if (batched)
        rows = sizes[0];
    long long row = product(input, sizes + batched, rank - batched, input->itemsize ? input->itemsize : 1);
    Py_ssize_t size = length(data);
    if (row == 0 || rows < 1 || (batched && rows > self->max_batch) || row > INT64_MAX / rows || size < 0)
        return 0;
    if (input->itemsize ? size / rows != row || size % rows : !are_strings(data, rows * row))
        return 0;
    *nbytes += size;
    return rows;
}

static const struct input *find(const PlainCheck *self, PyObject *tensor, unsigned *seen)
{
    PyObject *name = Py_TYPE(tensor) == self->messages->types[TENSOR] ? field(self->messages, TENSOR, tensor, T_NAME) : NULL;
    for (Py_ssize_t i = 0; name != NULL && i < self->count; i++)
        if (is_same(self->inputs[i].name, name)) {
            int again = *seen >> i & 1;
            *seen |= 1u << i;
            return again ? NULL : &self->inputs[i];
        }
    return NULL;
}

/* Whether every required input is there. */
static int is_complete(const PlainCheck *self, unsigned seen)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (self->inputs[i].required && !(seen >> i & 1))
            return 0;
    return 1;
}

Py_ssize_t plain_rows(const PlainCheck *self, PyObject *request, Py_ssize_t *nbytes)
{
    PyObject *inputs = field(self->messages, REQUEST, request, Q_INPUTS), *outputs = field(self->messages, REQUEST, request, Q_OUTPUTS);
    unsigned seen = 0;
    long long rows = self->max_batch ? 0 : 1;
    *nbytes = 0;
    if (self->count < 0 || inputs == NULL || !PyTuple_CheckExact(inputs) || outputs == NULL || !PyTuple_CheckExact(outputs) ||
        !are_outputs_plain(self, outputs))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); i++) {
        PyObject *tensor = PyTuple_GET_ITEM(inputs, i);
        const struct input *input = find(self, tensor, &seen);
        long long own = input == NULL ? 0 : rows_of(self, input, tensor, nbytes);
        if (own == 0 || (rows && own != rows))
            return 0;
        rows = own;
    }
    return is_complete(self, seen) ? (Py_ssize_t)rows : 0;
}

/* Making one. */

static int read_dims(struct input *input, PyObject *dims, int batched)
{
    input->rank = PyTuple_GET_SIZE(dims);
    if (input->rank + batched > RANK)
        return 0;
    for (Py_ssize_t i = 0; i < input->rank; i++) {
        input->dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(dims, i));
        if (PyErr_Occurred())
            return -1;
    }
    return 1;
}

/* Read an input's specification: name, datatype, itemsize, dims, optional; 0 for one that is not known here. */
static int read_input(struct input *input, PyObject *specification, int batched)
{
    PyObject *dims;
    int optional;
    if (!PyArg_ParseTuple(specification, "UUnO!p", &input->name, &input->datatype, &input->itemsize, &PyTuple_Type, &dims,
                          &optional))
        return -1;
    Py_INCREF(input->name);
    Py_INCREF(input->datatype);
    input->required = !optional;
    return read_dims(input, dims, batched);
}

static PyObject *new_plain_check(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {"messages", "max_batch", "inputs", "outputs", NULL};
    PyObject *messages, *inputs, *outputs;
    Py_ssize_t max_batch;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "O!nO!O!", keywords, messages_type, &messages, &max_batch,
                                     &PyTuple_Type, &inputs, &PyFrozenSet_Type, &outputs))
        return NULL;
    PlainCheck *self = (PlainCheck *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->messages = (Messages *)Py_NewRef(messages);
    self->outputs = Py_NewRef(outputs);
    self->max_batch = max_batch;
    int known = PyTuple_GET_SIZE(inputs) <= INPUTS;
    for (Py_ssize_t i = 0; known > 0 && i < PyTuple_GET_SIZE(inputs); i++) {
        known = read_input(&self->inputs[i], PyTuple_GET_ITEM(inputs, i), max_batch > 0);
        self->count += known > 0;
    }
    self->count = known ? self->count : -1; /* no request is plain */
    if (known < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void delete_plain_check(PlainCheck *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < INPUTS; i++) {
        Py_XDECREF(self->inputs[i].name);
        Py_XDECREF(self->inputs[i].datatype);
    }
    Py_XDECREF(self->messages);
    Py_XDECREF(self->outputs);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *rows(PlainCheck *self, PyObject *request)
{
    Py_ssize_t nbytes;
    if (Py_TYPE(request) != self->messages->types[REQUEST]) {
        PyErr_SetString(PyExc_TypeError, "no request");
        return NULL;
    }
    return PyLong_FromSsize_t(plain_rows(self, request, &nbytes));
}

static PyMethodDef methods[] = {
    {"rows", (PyCFunction)(void (*)(void))rows, METH_O, "Return the rows of a request; 0 for one that needs every check."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_plain_check},
    {Py_tp_dealloc, delete_plain_check},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "app.native.extension.PlainCheck",
    .basicsize = sizeof(PlainCheck),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

PyTypeObject *plain_check_type;

int add_plain_check(PyObject *module)
{
    return add_type(module, &spec, &plain_check_type);
}
