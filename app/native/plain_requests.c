/* The type `PlainRequests`: the way of most requests through a replica, as `ServedModel` has it. */
#include "ends.h"
#include "plain_check.h"

#include <time.h>

enum callable { SUBMIT, DELIVER, CANCEL, REFUSED, RECORD, READ, WRITE, SCHEDULER, QUEUE, IN_FLIGHT, DURATIONS, OBJECTS };

typedef struct {
    PyObject_HEAD
    Messages *messages;
    PlainCheck *check;
    PyTypeObject *pending;
    Py_ssize_t offsets[P_SLOTS];
    PyObject *name, *version;
    PyObject *objects[OBJECTS];
    Py_ssize_t many; /* durations */
} PlainRequests;

static PyObject **place(const PlainRequests *self, PyObject *pending, int number)
{
    return (PyObject **)((char *)pending + self->offsets[number]);
}

static long long monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Make a `QueuedRequest`. */
static PyObject *new_pending(PlainRequests *self, PyObject *request, PyObject *sink, Py_ssize_t rows, Py_ssize_t nbytes)
{
    PyObject *pending = self->pending->tp_alloc(self->pending, 0);
    if (pending == NULL)
        return NULL;
    static const int false_ones[] = {P_ANSWERED, P_DETACHED, P_RESCHEDULED, P_ACCEPTED, P_FAILED, P_CANCELLED};
    for (size_t i = 0; i < sizeof false_ones / sizeof *false_ones; i++)
        *place(self, pending, false_ones[i]) = Py_NewRef(Py_False);
    static const int none_ones[] = {P_ACTIVITY, P_SHAPES, P_COMPUTED};
    for (size_t i = 0; i < sizeof none_ones / sizeof *none_ones; i++)
        *place(self, pending, none_ones[i]) = Py_NewRef(Py_None);
    *place(self, pending, P_INFER) = Py_NewRef(request);
    *place(self, pending, P_SINK) = Py_NewRef(sink);
    *place(self, pending, P_RESPONSES) = Py_NewRef(self->objects[QUEUE]);
    *place(self, pending, P_DISPATCH_NS) = PyLong_FromLong(0);
    *place(self, pending, P_ROWS) = PyLong_FromSsize_t(rows);
    *place(self, pending, P_NBYTES) = PyLong_FromSsize_t(nbytes);
    *place(self, pending, P_ARRIVAL_NS) = PyLong_FromLongLong(monotonic_ns());
    if (PyErr_Occurred())
        Py_CLEAR(pending);
    return pending;
}

/* Tell of a request that the scheduler has refused, and leave the exception as it was. */
static void tell_refused(PlainRequests *self, PyObject *pending)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyObject *arguments[] = {*place(self, pending, P_ARRIVAL_NS), error};
    PyObject *told = PyObject_Vectorcall(self->objects[REFUSED], arguments, 2, NULL);
    if (told == NULL)
        PyErr_WriteUnraisable(self->objects[REFUSED]);
    Py_XDECREF(told);
    PyErr_Restore(type, error, traceback);
}

/* Queue a request and return the function that cancels it. */
static PyObject *accept(PlainRequests *self, PyObject *pending)
{
    PyObject *scheduled = PyObject_CallMethodOneArg(self->objects[SCHEDULER], texts.schedule, pending);
    if (scheduled == NULL) {
        tell_refused(self, pending);
        return NULL;
    }
    Py_DECREF(scheduled);
    if (PySet_Add(self->objects[IN_FLIGHT], pending) < 0)
        return NULL;
    Py_XSETREF(*place(self, pending, P_ACCEPTED), Py_NewRef(Py_True));
    return PyMethod_New(self->objects[CANCEL], pending);
}

static int is_cleared_too(const PlainRequests *self)
{
    for (int i = 0; i < OBJECTS; i++)
        if (self->objects[i] == NULL)
            return 1;
    return 0;
}

/* Call with a request, and its response if that is not NULL. An exception is left to Python, which raises it again. */
static PyObject *try_call(PlainRequests *self, enum callable number, PyObject *request, PyObject *response)
{
    PyObject *arguments[] = {request, response};
    PyObject *made = PyObject_Vectorcall(self->objects[number], arguments, response == NULL ? 1 : 2, NULL);
    if (made == NULL && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    return made;
}

/* Return the request with what it has in client memory; NULL for one that is not plainly right. */
static PyObject *read_plain(PlainRequests *self, PyObject *request, Py_ssize_t *rows, Py_ssize_t *nbytes)
{
    *rows = Py_TYPE(request) == self->messages->types[REQUEST] ? plain_rows(self->check, request, nbytes) : 0;
    if (*rows == 0) /* before it is read, which Python does too */
        return NULL;
    return field(self->messages, REQUEST, request, Q_REGIONS) == Py_True ? try_call(self, READ, request, NULL) : Py_NewRef(request);
}

static PyObject *submit(PlainRequests *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || is_cleared_too(self)) {
        PyErr_SetString(PyExc_TypeError, "request, sink");
        return NULL;
    }
    Py_ssize_t nbytes, rows;
    PyObject *request = read_plain(self, arguments[0], &rows, &nbytes);
    if (request == NULL)
        return PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->objects[SUBMIT], arguments, 2, NULL);
    PyObject *pending = new_pending(self, request, arguments[1], rows, nbytes);
    PyObject *cancel = pending == NULL ? NULL : accept(self, pending);
    Py_XDECREF(pending);
    Py_DECREF(request);
    return cancel;
}

/* Whether a response is all there is to say of a request. */
static int is_plain(const PlainRequests *self, PyObject *pending, PyObject *response)
{
    if (Py_TYPE(pending) != self->pending || Py_TYPE(response) != self->messages->types[ANSWER])
        return 0;
    PyObject *request = *place(self, pending, P_INFER);
    if (request == NULL || Py_TYPE(request) != self->messages->types[REQUEST])
        return 0;
    PyObject *trace = field(self->messages, REQUEST, request, Q_TRACE);
    return trace != NULL && PyUnicode_CheckExact(trace) && PyUnicode_GET_LENGTH(trace) == 0 &&
           *place(self, pending, P_ACTIVITY) == Py_None && *place(self, pending, P_SINK) != NULL &&
           field(self->messages, ANSWER, response, A_FINAL) == Py_True && field(self->messages, ANSWER, response, A_FAILURE) == Py_None;
}

static int record(PlainRequests *self, PyObject *pending)
{
    long long arrival = PyLong_AsLongLong(*place(self, pending, P_ARRIVAL_NS));
    long long dispatch = PyLong_AsLongLong(*place(self, pending, P_DISPATCH_NS));
    if (PyErr_Occurred())
        return -1;
    PyObject *arguments[] = {PyLong_FromLongLong(monotonic_ns() - arrival), PyLong_FromLongLong(dispatch - arrival)};
    PyObject *done = NULL, *durations = self->objects[DURATIONS];
    if (arguments[0] != NULL && arguments[1] != NULL) {
        if (!PyList_CheckExact(durations) || PyList_GET_SIZE(durations) + 2 >= self->many)
            done = PyObject_Vectorcall(self->objects[RECORD], arguments, 2, NULL);
        else if (PyList_Append(durations, arguments[0]) == 0 && PyList_Append(durations, arguments[1]) == 0)
            done = Py_NewRef(Py_None);
    }
    Py_XDECREF(arguments[0]);
    Py_XDECREF(arguments[1]);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Give a sink the response in the name of the model. */
static PyObject *respond(PlainRequests *self, PyObject *pending, PyObject *response)
{
    PyObject *request = *place(self, pending, P_INFER), *sink = *place(self, pending, P_SINK);
    PyObject *values[] = {self->name, self->version, field(self->messages, ANSWER, response, A_OUTPUTS),
                          field(self->messages, REQUEST, request, Q_ID), field(self->messages, ANSWER, response, A_PARAMETERS)};
    for (int i = 0; i < 5; i++)
        if (values[i] == NULL) {
            PyErr_SetString(PyExc_AttributeError, "a field has no value");
            return NULL;
        }
    PyObject *done = send_plain(sink, values);
    if (done != NULL || PyErr_Occurred())
        return done;
    PyObject *made = PyObject_Vectorcall((PyObject *)self->messages->types[ANSWER], values, 5, NULL);
    if (made != NULL)
        done = PyObject_CallOneArg(sink, made);
    Py_XDECREF(made);
    return done;
}

/* Return the response that is sent, once what client memory is to have is there; NULL for one that is not plain. */
static PyObject *write_plain(PlainRequests *self, PyObject *pending, PyObject *response)
{
    if (!is_plain(self, pending, response))
        return NULL;
    PyObject *request = *place(self, pending, P_INFER);
    if (field(self->messages, REQUEST, request, Q_REGIONS) != Py_True)
        return Py_NewRef(response);
    /* The client of a cancelled request may already use its memory for something else. */
    if (*place(self, pending, P_CANCELLED) != Py_False || PySet_Contains(self->objects[IN_FLIGHT], pending) != 1)
        return NULL;
    PyObject *written = try_call(self, WRITE, request, response);
    if (written != NULL && !is_plain(self, pending, written))
        Py_CLEAR(written);
    return written;
}

static PyObject *deliver(PlainRequests *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || is_cleared_too(self)) {
        PyErr_SetString(PyExc_TypeError, "pending request, response");
        return NULL;
    }
    PyObject *response = write_plain(self, arguments[0], arguments[1]), *done = NULL;
    if (response == NULL)
        return PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->objects[DELIVER], arguments, 2, NULL);
    int in_flight = PySet_Discard(self->objects[IN_FLIGHT], arguments[0]);
    if (in_flight == 0) /* two threads of a backend finished it at the same moment */
        done = Py_NewRef(Py_None);
    else if (in_flight > 0 && record(self, arguments[0]) == 0)
        done = respond(self, arguments[0], response);
    Py_DECREF(response);
    return done;
}

/* Send the response of a request that has none yet; 0 for one that is not plain. */
static int answer(PlainRequests *self, PyObject *pending, PyObject *response)
{
    if (!is_plain(self, pending, response) || *place(self, pending, P_ANSWERED) != Py_False)
        return 0;
    Py_SETREF(*place(self, pending, P_ANSWERED), Py_NewRef(Py_True));
    PyObject *arguments[] = {pending, response};
    PyObject *done = deliver(self, arguments, 2);
    if (done == NULL) /* it must not block the others */
        PyErr_WriteUnraisable(response);
    Py_XDECREF(done);
    return 1;
}

static PyObject *deliver_all(PlainRequests *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || is_cleared_too(self)) {
        PyErr_SetString(PyExc_TypeError, "pending requests, responses");
        return NULL;
    }
    PyObject *all = PySequence_Tuple(arguments[0]), *responses = all == NULL ? NULL : PySequence_Tuple(arguments[1]);
    Py_ssize_t size = responses == NULL ? 0 : Py_MIN(PyTuple_GET_SIZE(all), PyTuple_GET_SIZE(responses));
    for (Py_ssize_t i = 0; i < size && !PyErr_Occurred(); i++) {
        PyObject *pending = PyTuple_GET_ITEM(all, i), *response = PyTuple_GET_ITEM(responses, i);
        if (!answer(self, pending, response))
            Py_XDECREF(PyObject_CallMethod(pending, "deliver", "O", response));
    }
    Py_XDECREF(all);
    Py_XDECREF(responses);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static int bind_pending(PlainRequests *self, PyObject *pending)
{
    self->pending = (PyTypeObject *)Py_NewRef(pending);
    return find_slots(self->pending, P_NAMES, self->offsets, __FILE__);
}

static PyObject *new_plain_requests(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {"messages", "check", "pending",   "name",      "version",   "submit",    "deliver", "cancel", "refused",
                               "record",   "read",  "write", "scheduler", "responses", "in_flight", "durations", "many", NULL};
    Py_ssize_t many;
    PyObject *messages, *check, *pending, *name, *version, *objects[OBJECTS];
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "O!O!O!UUOOOOOOOOOO!On", keywords, messages_type, &messages,
                                     plain_check_type, &check, &PyType_Type, &pending, &name, &version, &objects[SUBMIT],
                                     &objects[DELIVER], &objects[CANCEL], &objects[REFUSED], &objects[RECORD],
                                     &objects[READ], &objects[WRITE], &objects[SCHEDULER], &objects[QUEUE], &PySet_Type,
                                     &objects[IN_FLIGHT], &objects[DURATIONS], &many))
        return NULL;
    PlainRequests *self = (PlainRequests *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->messages = (Messages *)Py_NewRef(messages);
    self->check = (PlainCheck *)Py_NewRef(check);
    self->name = Py_NewRef(name);
    self->version = Py_NewRef(version);
    self->many = many;
    for (int i = 0; i < OBJECTS; i++)
        self->objects[i] = Py_NewRef(objects[i]);
    if (bind_pending(self, pending) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse_plain_requests(PlainRequests *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->pending);
    for (int i = 0; i < OBJECTS; i++)
        Py_VISIT(self->objects[i]);
    return 0;
}

static int clear_plain_requests(PlainRequests *self)
{
    for (int i = 0; i < OBJECTS; i++)
        Py_CLEAR(self->objects[i]);
    return 0;
}

static void delete_plain_requests(PlainRequests *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_plain_requests(self);
    Py_XDECREF(self->pending);
    Py_XDECREF(self->messages);
    Py_XDECREF(self->check);
    Py_XDECREF(self->name);
    Py_XDECREF(self->version);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"submit", (PyCFunction)(void (*)(void))submit, METH_FASTCALL, "Queue a request; return what cancels it."},
    {"deliver", (PyCFunction)(void (*)(void))deliver, METH_FASTCALL, "Send the response of a queued request."},
    {"deliver_all", (PyCFunction)(void (*)(void))deliver_all, METH_FASTCALL, "Send the responses of queued requests."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_plain_requests},           {Py_tp_dealloc, delete_plain_requests},
    {Py_tp_traverse, traverse_plain_requests}, {Py_tp_clear, clear_plain_requests},
    {Py_tp_methods, methods},                  {0, NULL},
};

static PyType_Spec spec = {
    .name = "app.native.extension.PlainRequests",
    .basicsize = sizeof(PlainRequests),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int add_plain_requests(PyObject *module)
{
    return add_plain_check(module) < 0 ? -1 : add_type(module, &spec, NULL);
}
