// TRITONSERVER_Metric*: families of custom metrics, which the server reads for its /metrics.
#include <algorithm>
#include <ctime>

#include "core.h"

namespace {
constexpr size_t MAX_METRICS = 4096;  // families, and metrics of a family
constexpr const char* KINDS[] = {"counter", "gauge", "histogram"};
constexpr const char* KIND_NAMES[] = {
    "TRITONSERVER_METRIC_KIND_COUNTER", "TRITONSERVER_METRIC_KIND_GAUGE", "TRITONSERVER_METRIC_KIND_HISTOGRAM"};
}  // namespace

using Labels = std::map<std::string, std::string>;

struct MetricValue {
  Labels labels;
  double value = 0;  // a histogram's sum
  uint64_t set_ns = 0;
  std::vector<double> bounds;
  std::vector<uint64_t> counts;
};

struct MetricFamily {
  std::string name, description;
  int kind = COUNTER;
  std::map<Labels, std::weak_ptr<MetricValue>> values;
};

namespace {
// Guards all of this file's data: metrics are updated rarely, by the measure of a lock.
std::mutex mutex;
std::map<std::string, std::weak_ptr<MetricFamily>> families;

template <class Map>
void remove_expired(Map& map) {
  for (auto each = map.begin(); each != map.end();) each = each->second.expired() ? map.erase(each) : std::next(each);
}

uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

Error* refused(int kind, const char* operation) {
  return error(UNSUPPORTED, std::string(KIND_NAMES[kind]) + " does not support " + operation);
}
}  // namespace

struct TRITONSERVER_MetricFamily {
  std::shared_ptr<MetricFamily> family;
  size_t metrics = 0;
};
struct TRITONSERVER_Metric {
  TRITONSERVER_MetricFamily* owner;
  std::shared_ptr<MetricFamily> family;
  std::shared_ptr<MetricValue> value;
};
struct TRITONSERVER_MetricArgs {
  std::vector<double> bounds;
};

API Error* TRITONSERVER_MetricFamilyNew(
    TRITONSERVER_MetricFamily** result, int kind, const char* name, const char* description) {
  if (kind < COUNTER || kind > HISTOGRAM) return error(INVALID_ARG, "Unknown metric kind");
  const std::lock_guard lock(mutex);
  remove_expired(families);
  std::shared_ptr<MetricFamily> family = families[name].lock();
  if (family == nullptr) {
    if (families.size() > MAX_METRICS) return error(INVALID_ARG, "too many metric families");
    family = std::make_shared<MetricFamily>(MetricFamily{name, description, kind, {}});
    families[name] = family;
  }
  if (family->kind != kind) return error(INVALID_ARG, "Family name already exists with different type");
  *result = new TRITONSERVER_MetricFamily{std::move(family)};
  return nullptr;
}

API Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily* family) {
  const std::lock_guard lock(mutex);
  if (family->metrics > 0)
    return error(INTERNAL, "Must delete all Metric objects before deleting MetricFamily");
  delete family;
  return nullptr;
}

API Error* TRITONSERVER_GetMetricFamilyKind(TRITONSERVER_MetricFamily* family, int* kind) {
  *kind = family->family->kind;
  return nullptr;
}

API Error* TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs** args) {
  *args = new TRITONSERVER_MetricArgs;
  return nullptr;
}
API Error* TRITONSERVER_MetricArgsSetHistogram(TRITONSERVER_MetricArgs* args, const double* bounds, uint64_t count) {
  args->bounds.assign(bounds, bounds + count);
  return nullptr;
}
API Error* TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs* args) {
  delete args;
  return nullptr;
}

API Error* TRITONSERVER_MetricNewWithArgs(
    TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family, const TRITONSERVER_Parameter** labels,
    uint64_t label_count, const TRITONSERVER_MetricArgs* args) {
  const bool histogram = family->family->kind == HISTOGRAM;
  const std::vector<double> bounds = args == nullptr ? std::vector<double>() : args->bounds;
  if (histogram == bounds.empty())
    return error(INVALID_ARG, histogram ? "Missing required buckets." : "Unexpected buckets found.");
  if (std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) != bounds.end())
    return error(INVALID_ARG, "Bucket Boundaries must be strictly sorted");
  Labels known;
  for (uint64_t index = 0; index < label_count; ++index) {
    if (labels[index]->type != PARAMETER_STRING)
      return error(INVALID_ARG, "Parameter [" + labels[index]->name + "] must have a type of TRITONSERVER_PARAMETER_STRING");
    known[labels[index]->name] = labels[index]->text;
  }
  const std::lock_guard lock(mutex);
  auto& values = family->family->values;
  remove_expired(values);
  std::shared_ptr<MetricValue> value = values[known].lock();
  if (value == nullptr) {
    if (values.size() > MAX_METRICS) return error(INVALID_ARG, "too many metrics in a family");
    const std::vector<uint64_t> counts(bounds.empty() ? 0 : bounds.size() + 1);
    value = std::make_shared<MetricValue>(MetricValue{known, 0, 0, bounds, counts});
    values[known] = value;
  }
  ++family->metrics;
  *metric = new TRITONSERVER_Metric{family, family->family, std::move(value)};
  return nullptr;
}

API Error* TRITONSERVER_MetricNew(
    TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family, const TRITONSERVER_Parameter** labels,
    uint64_t label_count) {
  return TRITONSERVER_MetricNewWithArgs(metric, family, labels, label_count, nullptr);
}

API Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric* metric) {
  const std::lock_guard lock(mutex);
  --metric->owner->metrics;
  delete metric;
  return nullptr;
}

API Error* TRITONSERVER_GetMetricKind(TRITONSERVER_Metric* metric, int* kind) {
  *kind = metric->family->kind;
  return nullptr;
}

API Error* TRITONSERVER_MetricValue(TRITONSERVER_Metric* metric, double* value) {
  if (metric->family->kind == HISTOGRAM) return refused(HISTOGRAM, "Value");
  const std::lock_guard lock(mutex);
  *value = metric->value->value;
  return nullptr;
}

API Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric* metric, double value) {
  const int kind = metric->family->kind;
  if (kind == HISTOGRAM) return refused(kind, "Increment");
  if (kind == COUNTER && !(value >= 0)) {
    const std::string text = " can only be incremented monotonically by non-negative values.";
    return error(INVALID_ARG, KIND_NAMES[COUNTER] + text);
  }
  const std::lock_guard lock(mutex);
  metric->value->value += value;
  return nullptr;
}

API Error* TRITONSERVER_MetricSet(TRITONSERVER_Metric* metric, double value) {
  if (metric->family->kind != GAUGE) return refused(metric->family->kind, "Set");
  const std::lock_guard lock(mutex);
  metric->value->value = value;
  metric->value->set_ns = monotonic_ns();
  return nullptr;
}

API Error* TRITONSERVER_MetricObserve(TRITONSERVER_Metric* metric, double value) {
  if (metric->family->kind != HISTOGRAM) return refused(metric->family->kind, "Observe");
  const std::lock_guard lock(mutex);
  MetricValue& into = *metric->value;
  into.value += value;
  ++into.counts[static_cast<size_t>(
      std::lower_bound(into.bounds.begin(), into.bounds.end(), value) - into.bounds.begin())];
  return nullptr;
}

namespace {
void write(Writer& out, const MetricValue& value) {
  out.array(5);
  out.map(value.labels.size());
  for (const auto& [name, text] : value.labels) out.text(name), out.text(text);
  out.add(value.value);
  out.add(value.set_ns);
  out.add(value.bounds);
  out.add(value.counts);
}
}  // namespace

// Returns all metrics in the form of `backends.python.api.metrics.snapshot`, valid until the next call.
API const char* nereid_metrics(size_t* size) {
  static std::string result;
  const std::lock_guard lock(mutex);
  remove_expired(families);
  Writer out;
  out.array(families.size());
  for (auto& [name, held] : families) {
    const std::shared_ptr<MetricFamily> family = held.lock();
    remove_expired(family->values);
    out.array(4);
    out.add(family->name);
    out.add(family->description);
    out.add(KINDS[family->kind]);
    out.array(family->values.size());
    for (const auto& [labels, value] : family->values) write(out, *value.lock());
  }
  result = std::move(out.bytes);
  *size = result.size();
  return result.data();
}
