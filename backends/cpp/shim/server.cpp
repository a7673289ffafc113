// TRITONSERVER_Server*: what a backend asks about other models, and the model repository. The server is this one.
#include <future>

#include "core.h"

using Server = TRITONSERVER_Server;

namespace {
std::mutex questions_mutex;
std::map<uint64_t, std::promise<std::pair<int, std::string>>> questions;
uint64_t last_question = 0;

Error* ask_number(const char* what, const char* model, int64_t version, uint32_t* number) {
  std::string answer;
  CHECK(ask(answer, what, model, version));
  *number = static_cast<uint32_t>(std::stoul(answer));
  return nullptr;
}
}  // namespace

Error* ask(
    std::string& answer, const char* what, const char* model, int64_t version, const std::string& json,
    const std::vector<std::pair<std::string, Bytes>>& files) {
  if (!Queue::global().has_reader()) return error(UNAVAILABLE, "the server cannot be asked now");
  std::future<std::pair<int, std::string>> answered;
  uint64_t number;
  {
    const std::lock_guard lock(questions_mutex);
    number = ++last_question;
    answered = questions[number].get_future();
  }
  const std::string text = version < 0 ? "" : std::to_string(version);
  Queue::global().put(Writer::of(QUESTION, number, what, model, text, json, files).bytes);
  int code;
  std::tie(code, answer) = answered.get();
  return code < 0 ? nullptr : error(static_cast<ErrorCode>(code), answer);
}

// Answers a question: with an error's code and text, or -1 and what was asked for.
API void nereid_answer(uint64_t number, int code, const char* data, size_t size) {
  const std::lock_guard lock(questions_mutex);
  const auto found = questions.find(number);
  if (found == questions.end()) return;
  found->second.set_value({code, std::string(data, size)});
  questions.erase(found);
}

// A replica executes while its server lives and takes requests.
API Error* TRITONSERVER_ServerIsLive(Server*, bool* live) { return *live = true, nullptr; }
API Error* TRITONSERVER_ServerIsReady(Server*, bool* ready) { return *ready = true, nullptr; }
API Error* TRITONSERVER_ServerModelIsReady(Server*, const char* model, int64_t version, bool* ready) {
  uint32_t number;
  CHECK(ask_number("ready", model, version, &number));
  *ready = number != 0;
  return nullptr;
}
API Error* TRITONSERVER_ServerModelBatchProperties(
    Server*, const char* model, int64_t version, uint32_t* flags, void** details) {
  if (details != nullptr) *details = nullptr;
  return ask_number("batching", model, version, flags);
}
API Error* TRITONSERVER_ServerModelTransactionProperties(
    Server*, const char* model, int64_t version, uint32_t* flags, void** details) {
  if (details != nullptr) *details = nullptr;
  return ask_number("transactions", model, version, flags);
}
API Error* TRITONSERVER_ServerModelConfig(
    Server*, const char* model, int64_t version, uint32_t config_version, TRITONSERVER_Message** config) {
  CHECK(check_config_version(config_version));
  std::string answer;
  CHECK(ask(answer, "config", model, version));
  *config = new TRITONSERVER_Message{answer};
  return nullptr;
}
API Error* TRITONSERVER_ServerModelMetadata(
    Server*, const char* model, int64_t version, TRITONSERVER_Message** metadata) {
  std::string answer;
  CHECK(ask(answer, "metadata", model, version));
  *metadata = new TRITONSERVER_Message{answer};
  return nullptr;
}

API Error* TRITONSERVER_ServerLoadModelWithParameters(
    Server*, const char* model, const TRITONSERVER_Parameter** parameters, uint64_t count) {
  std::string config, answer;
  std::vector<std::pair<std::string, Bytes>> files;
  for (uint64_t index = 0; index < count; ++index) {
    const TRITONSERVER_Parameter& parameter = *parameters[index];
    if (parameter.name == "config") {
      config = parameter.text;
    } else {
      files.emplace_back(parameter.name, Bytes{parameter.text.data(), parameter.text.size()});
    }
  }
  return ask(answer, "load", model, -1, config, files);
}
API Error* TRITONSERVER_ServerLoadModel(Server* self, const char* model) {
  return TRITONSERVER_ServerLoadModelWithParameters(self, model, nullptr, 0);
}
API Error* TRITONSERVER_ServerUnloadModel(Server*, const char* model) {
  std::string answer;
  return ask(answer, "unload", model);
}
API Error* TRITONSERVER_ServerUnloadModelAndDependents(Server*, const char* model) {
  std::string answer;
  return ask(answer, "unload dependents", model);
}

// What is not there: servers inside the process, raw inputs, traces read back. The functions take any arguments, as C
// functions may, and say so; a backend that refers to them loads.
#define NOT_THERE(NAME)                                                                               \
  API Error* TRITONSERVER_##NAME() {                                                                \
    return error(UNSUPPORTED, "TRITONSERVER_" #NAME " is not supported for backends of this server"); \
  }
#define EACH(X) \
  X(InferenceRequestAddRawInput) X(InferenceResponseOutputClassificationLabel) X(InferenceTraceContext) \
  X(InferenceTraceId) X(InferenceTraceModelName) X(InferenceTraceModelVersion) X(InferenceTraceNew) \
  X(InferenceTraceParentId) X(InferenceTraceRequestId) X(InferenceTraceSetContext) X(InferenceTraceTensorNew) \
  X(MetricsDelete) X(MetricsFormatted) X(ServerDelete) X(ServerMetadata) X(ServerMetrics) X(ServerModelIndex) \
  X(ServerModelStatistics) X(ServerNew) X(ServerOptionsAddRateLimiterResource) X(ServerOptionsDelete) \
  X(ServerOptionsNew) X(ServerOptionsSetBackendConfig) X(ServerOptionsSetBackendDirectory) \
  X(ServerOptionsSetBufferManagerThreadCount) X(ServerOptionsSetCacheConfig) X(ServerOptionsSetCacheDirectory) \
  X(ServerOptionsSetCpuMetrics) X(ServerOptionsSetCudaMemoryPoolByteSize) \
  X(ServerOptionsSetCudaVirtualAddressSize) X(ServerOptionsSetEnablePeerAccess) X(ServerOptionsSetExitOnError) \
  X(ServerOptionsSetExitTimeout) X(ServerOptionsSetGpuMetrics) X(ServerOptionsSetHostPolicy) \
  X(ServerOptionsSetLogError) X(ServerOptionsSetLogFile) X(ServerOptionsSetLogFormat) X(ServerOptionsSetLogInfo) \
  X(ServerOptionsSetLogVerbose) X(ServerOptionsSetLogWarn) X(ServerOptionsSetMetrics) \
  X(ServerOptionsSetMetricsConfig) X(ServerOptionsSetMetricsInterval) \
  X(ServerOptionsSetMinSupportedComputeCapability) X(ServerOptionsSetModelConfigName) \
  X(ServerOptionsSetModelControlMode) X(ServerOptionsSetModelLoadDeviceLimit) \
  X(ServerOptionsSetModelLoadRetryCount) X(ServerOptionsSetModelLoadThreadCount) \
  X(ServerOptionsSetModelNamespacing) X(ServerOptionsSetModelRepositoryPath) \
  X(ServerOptionsSetPinnedMemoryPoolByteSize) X(ServerOptionsSetRateLimiterMode) \
  X(ServerOptionsSetRepoAgentDirectory) X(ServerOptionsSetResponseCacheByteSize) X(ServerOptionsSetServerId) \
  X(ServerOptionsSetStartupModel) X(ServerOptionsSetStrictModelConfig) X(ServerOptionsSetStrictReadiness) \
  X(ServerPollModelRepository) X(ServerRegisterModelRepository) X(ServerSetExitTimeout) X(ServerStop) \
  X(ServerUnregisterModelRepository)
EACH(NOT_THERE)

API const char* TRITONSERVER_InferenceTraceActivityString(int) { return "<not supported>"; }
API const char* TRITONSERVER_InferenceTraceLevelString(int) { return "<not supported>"; }
