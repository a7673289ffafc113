// TRITONSERVER_ServerInferAsync: calls of other models. A call leaves as an event; its responses arrive by
// nereid_respond, on a thread of the server's that may block.
#include "core.h"

namespace {
std::mutex calls_mutex;
std::unordered_map<uint64_t, CallRequest*> calls;  // in flight
uint64_t last_call = 0;

// Returns the requests that a call may be for: the one of its trace, or those of the execution on this thread.
std::vector<uint64_t> callers(const Trace* trace) {
  std::vector<uint64_t> tokens;
  if (trace != nullptr) return {trace->exchange->token};
  if (executing == nullptr) return tokens;
  const std::lock_guard lock(executing->mutex);
  for (const TRITONBACKEND_Request* request : executing->requests)
    if (request != nullptr && !request->exchange->finished) tokens.push_back(request->exchange->token);
  return tokens;
}

// The data of a small input go along; of others, [address, size] of each part, which the server copies.
void write(Writer& event, const CallInput& input) {
  event.array(4);
  event.add(input.name);
  event.add(datatype_name(input.datatype));
  event.add(input.shape);
  size_t size = 0;
  for (const auto& part : input.parts) size += part.second;
  if (size < INLINE_BYTES) {
    std::string data;
    for (const auto& [part, length] : input.parts) data.append(part, length);
    event.binary(data.data(), data.size());
    return;
  }
  event.array(input.parts.size());
  for (const auto& [data, length] : input.parts)
    event.bytes += Writer::of(reinterpret_cast<uint64_t>(data), length).bytes;
}

std::string event_of(const CallRequest& request, const Trace* trace) {
  Writer event;
  event.array(13);
  event.add(CALL);
  event.add(request.call.load());
  event.add(callers(trace));
  event.add(request.model);
  event.add(request.version);
  event.add(request.id);
  if (request.correlation_is_text) {
    event.add(request.correlation_text);
  } else {
    event.add(request.correlation_id);
  }
  event.add(request.flags);
  event.add(request.priority);
  event.add(request.timeout_us);
  event.map(request.parameters.size());
  for (const TRITONSERVER_Parameter& parameter : request.parameters) parameter.write(event);
  event.array(request.inputs.size());
  for (const CallInput& input : request.inputs) write(event, input);
  event.add(request.outputs);
  return std::move(event.bytes);
}

Error* allocate(const CallRequest& request, CallOutput& output, size_t size) {
  Allocator* allocator = request.allocator;
  TRITONSERVER_BufferAttributes& attributes = output.attributes;
  CHECK(allocator->allocate(
      allocator, output.name.c_str(), size, MEMORY_CPU, 0, request.allocator_context, &output.data, &output.context,
      &attributes.memory_type, &attributes.memory_type_id));
  if (allocator->attributes != nullptr)
    CHECK(allocator->attributes(
        allocator, output.name.c_str(), &attributes, request.allocator_context, output.context));
  attributes.byte_size = size;
  if (attributes.memory_type == MEMORY_GPU)
    return error(UNSUPPORTED, "output '" + output.name + "': responses are written to memory of the CPU only");
  if (size > 0 && output.data == nullptr) return error(INTERNAL, "no buffer was allocated for '" + output.name + "'");
  return nullptr;
}

Error* read_output(Reader& reader, const CallRequest& request, CallResponse& response) {
  CallOutput& output = response.outputs.emplace_back();
  reader.array();
  output.name = reader.text();
  output.datatype = datatype_number(reader.text());
  reader.get(output.shape);
  uint64_t address, size;
  if (reader.is_binary()) {
    const std::string_view data = reader.binary();
    address = reinterpret_cast<uint64_t>(data.data());
    size = data.size();
  } else {
    reader.fields(address, size);
  }
  CHECK(allocate(request, output, size));
  if (size > 0) std::memcpy(output.data, reinterpret_cast<const void*>(address), size);
  return nullptr;
}

std::unique_ptr<CallResponse> read_response(Reader& reader, const CallRequest& request) {
  auto response = std::make_unique<CallResponse>();
  response->allocator = request.allocator;
  response->id = request.id;
  const auto code = reader.integer();
  const std::string text = reader.text();
  if (code >= 0) response->failure.reset(error(static_cast<ErrorCode>(code), text));
  reader.get(response->model);
  reader.get(response->version);
  const size_t parameters = reader.map();
  for (size_t index = 0; index < parameters; ++index)
    response->parameters.push_back(TRITONSERVER_Parameter::read(reader));
  if (request.allocator->start != nullptr) delete request.allocator->start(request.allocator, request.allocator_context);
  for (size_t left = reader.array(); left > 0 && response->failure == nullptr; --left)
    response->failure.reset(read_output(reader, request, *response));
  return response;
}
}  // namespace

// Gives a call a response: [final, whether there is none, error code or -1, its text, model, version, parameters,
// outputs]. Runs the backend's callbacks.
API void nereid_respond(uint64_t number, const char* data, size_t size) {
  Reader reader(data, size);
  reader.array();
  const bool final = reader.boolean(), empty = reader.boolean();
  CallRequest* request;
  {
    const std::lock_guard lock(calls_mutex);
    const auto found = calls.find(number);
    if (found == calls.end()) return;
    request = found->second;
    if (final) calls.erase(found);
  }
  std::unique_ptr<CallResponse> response = empty ? nullptr : read_response(reader, *request);
  if (final) request->trace.reset();
  request->complete(response.release(), final ? RESPONSE_FINAL : 0, request->complete_context);
  if (final) request->release(request, RELEASE_ALL, request->release_context);
}

API Error* TRITONSERVER_ServerInferAsync(TRITONSERVER_Server*, CallRequest* request, Trace* trace) {
  if (request->complete == nullptr || request->release == nullptr || request->allocator == nullptr)
    return error(INVALID_ARG, request->prefix() + "a request needs callbacks for its release and its responses");
  request->cancelled = false;
  if (trace != nullptr && trace->owner != nullptr) request->trace.reset(trace);
  {
    const std::lock_guard lock(calls_mutex);
    request->call = ++last_call;
    calls[last_call] = request;
  }
  Queue::global().put(event_of(*request, trace));
  return nullptr;
}

API Error* TRITONSERVER_InferenceRequestCancel(CallRequest* request) {
  if (request->call == 0)
    return error(INTERNAL, "It is not possible to cancel an inference request before calling TRITONSERVER_InferAsync.");
  if (!request->cancelled.exchange(true)) Queue::global().put(Writer::of(CANCEL, request->call.load()).bytes);
  return nullptr;
}
API Error* TRITONSERVER_InferenceRequestIsCancelled(CallRequest* request, bool* is_cancelled) {
  if (request->call == 0)
    return error(
        INTERNAL, "It is not possible to query cancellation status before calling TRITONSERVER_InferAsync.");
  *is_cancelled = request->cancelled;
  return nullptr;
}
