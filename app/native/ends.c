/* What both ends of a channel have in common. */
#include "ends.h"

static uint64_t little_endian(const unsigned char *place, int width)
{
    uint64_t value = 0;
    while (width-- > 0)
        value = value << 8 | place[width];
    return value;
}

/* Read the frame at the start of some bytes; 0 for one that is not complete or that Python has to judge. */
static size_t read_frame(const End *self, const unsigned char *bytes, size_t nbytes, struct frame *frame)
{
    if (nbytes < HEADER_SIZE)
        return 0;
    uint64_t meta_size = little_endian(bytes + 4, 4);
    uint64_t reserved = little_endian(bytes + 2, 2), payload_size = little_endian(bytes + 8, 8);
    size_t size = HEADER_SIZE + (size_t)meta_size;
    if (reserved || payload_size || size > nbytes || (Py_ssize_t)meta_size > self->messages->max_meta ||
        (Py_ssize_t)size > self->max_frame)
        return 0;
    frame->kind = bytes[0];
    frame->flags = bytes[1];
    frame->stream = little_endian(bytes + 16, 8);
    frame->left = little_endian(bytes + 24, 8);
    frame->meta = bytes + HEADER_SIZE;
    frame->meta_size = (size_t)meta_size;
    return size;
}

/* Return where the first frame begins that is left to Python; -1 with an error. */
static Py_ssize_t take(End *self, const unsigned char *bytes, Py_ssize_t start, Py_ssize_t end, int kind, frame_handler handle)
{
    struct frame frame;
    size_t size;
    while ((size = read_frame(self, bytes + start, (size_t)(end - start), &frame)) != 0 && frame.kind == kind) {
        int handled = handle(self, &frame);
        if (handled <= 0)
            return handled < 0 ? -1 : start;
        start += (Py_ssize_t)size;
        int closing = is_set(self, texts.closing);
        if (closing)
            return closing < 0 ? -1 : start;
    }
    return start;
}

PyObject *take_frames(End *self, PyObject *const *arguments, Py_ssize_t count, enum kind kind, frame_handler handle)
{
    Py_buffer buffer;
    Py_ssize_t start = count == 3 ? PyLong_AsSsize_t(arguments[1]) : -1;
    Py_ssize_t end = start < 0 ? -1 : PyLong_AsSsize_t(arguments[2]);
    if (end < start || start < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "buffer, start, end");
        return NULL;
    }
    if (PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    if (end <= buffer.len)
        start = take(self, buffer.buf, start, end, kind, handle);
    else
        PyErr_SetString(PyExc_ValueError, "the buffer ends before");
    PyBuffer_Release(&buffer);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(start);
}

int queue_frame(End *self, PyObject *frame)
{
    int queued = -1;
    if (self->frames != NULL && PyList_CheckExact(self->frames))
        queued = PyList_Append(self->frames, frame);
    else
        PyErr_SetString(PyExc_TypeError, "frames are no list");
    self->nbytes += queued < 0 ? 0 : PyBytes_GET_SIZE(frame);
    Py_DECREF(frame);
    if (queued < 0 || self->flush_scheduled)
        return queued;
    self->flush_scheduled = 1;
    PyObject *scheduled = PyObject_CallNoArgs(self->flush);
    Py_XDECREF(scheduled);
    return scheduled == NULL ? -1 : 0;
}

int view_shared(End *self, enum struct_type type, PyObject *message)
{
    PyObject *tensors = field(self->messages, type, message, type == REQUEST ? Q_INPUTS : A_OUTPUTS);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); i++) {
        PyObject **data = (PyObject **)((char *)PyTuple_GET_ITEM(tensors, i) + self->messages->offsets[TENSOR][3]);
        PyObject *view = PyTuple_CheckExact(*data) ? PyObject_CallMethod(self->connection, "view_shared", "(O)", *data)
                                                   : Py_NewRef(*data);
        if (view == NULL)
            return -1;
        Py_SETREF(*data, view);
    }
    return 0;
}

int notify(End *self, PyObject *name, PyObject *first, PyObject *second, PyObject *third)
{
    PyObject *result = PyObject_CallMethodObjArgs(self->connection, name, first, second, third, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

int is_set(End *self, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(self->connection, name);
    int set = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return set;
}

PyObject *caught(void)
{
    PyObject *type, *error, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return error;
}

End *new_end(PyTypeObject *type, PyObject *messages, PyObject *connection, PyObject *table, PyObject *flush)
{
    if (Py_TYPE(messages) != messages_type || !PyDict_CheckExact(table)) {
        PyErr_SetString(PyExc_TypeError, "messages and a dict");
        return NULL;
    }
    End *self = (End *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->messages = (Messages *)Py_NewRef(messages);
    self->connection = Py_NewRef(connection);
    self->table = Py_NewRef(table);
    self->flush = Py_NewRef(flush);
    self->frames = PyList_New(0);
    if (self->frames == NULL)
        Py_CLEAR(self);
    return self;
}

int traverse_end(End *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->connection);
    Py_VISIT(self->table);
    Py_VISIT(self->flush);
    Py_VISIT(self->frames);
    return 0;
}

int clear_end(End *self)
{
    Py_CLEAR(self->connection);
    Py_CLEAR(self->table);
    Py_CLEAR(self->flush);
    return 0;
}

void delete_end(End *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_end(self);
    Py_XDECREF(self->messages);
    Py_XDECREF(self->frames);
    type->tp_free(self);
    Py_DECREF(type);
}

int add_ends(PyObject *module)
{
    return add_client_end(module) < 0 || add_server_end(module) < 0 || add_plain_requests(module) < 0 ? -1 : 0;
}
