// What leaves an execution and what leaves the library later.
#include <sys/eventfd.h>
#include <unistd.h>

#include "core.h"

std::string message_of(size_t count, const std::string& events) {
  Writer message;
  message.array(count);
  return message.bytes + events;
}

Queue& Queue::global() {
  static auto* queue = new Queue;  // never destroyed: threads of backends may outlive main
  return *queue;
}

int Queue::descriptor() {
  const std::lock_guard lock(mutex_);
  if (descriptor_ < 0) descriptor_ = eventfd(0, EFD_CLOEXEC);
  return descriptor_;
}

bool Queue::has_reader() {
  const std::lock_guard lock(mutex_);
  return descriptor_ >= 0;
}

void Queue::append(const std::string& event) {
  events_ += event;
  const uint64_t one = 1;
  if (count_++ == 0 && descriptor_ >= 0) {
    [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof one);
  }
}

void Queue::put(const std::string& event) {
  std::unique_lock lock(mutex_);
  space_.wait(lock, [this] { return events_.size() < QUEUE_BYTES; });
  append(event);
}

void Queue::log(int level, const char* file, int line, const char* text) {
  const std::lock_guard lock(mutex_);
  if (logs_ == MAX_QUEUED_LOGS || events_.size() >= QUEUE_BYTES) {
    ++dropped_;
    return;
  }
  ++logs_;
  const std::string lost = dropped_ == 0 ? "" : " (and " + std::to_string(dropped_) + " lines before that were lost)";
  dropped_ = 0;
  append(Writer::of(LOG, level, file, line, text + lost).bytes);
}

const std::string& Queue::take() {
  const std::lock_guard lock(mutex_);
  taken_ = message_of(count_, events_);
  events_.clear();
  count_ = logs_ = 0;
  space_.notify_all();
  return taken_;
}

char* Execution::allocate(size_t size) {
  const std::lock_guard lock(mutex);
  const size_t aligned = (size + 63) & ~size_t{63};
  wanted += aligned;
  if (!open || aligned > arena_size - arena_used) return nullptr;
  char* memory = arena + arena_used;
  arena_used += aligned;
  return memory;
}

namespace {
// The requests whose backends ask whether they are cancelled.
std::mutex watched_mutex;
std::unordered_map<uint64_t, Exchange*> watched_exchanges;
}  // namespace

void cancel(uint64_t token) {
  const std::lock_guard lock(watched_mutex);
  const auto found = watched_exchanges.find(token);
  if (found != watched_exchanges.end()) found->second->cancelled = true;
}

bool Exchange::is_cancelled() {
  if (!watched.exchange(true)) {
    {
      const std::lock_guard lock(watched_mutex);
      watched_exchanges[token] = this;
    }
    Queue::global().put(Writer::of(WATCH, token).bytes);
  }
  return cancelled;
}

Exchange::~Exchange() {
  if (watched) {
    const std::lock_guard lock(watched_mutex);
    watched_exchanges.erase(token);
  }
  if (token != 0) put(Writer::of(CLOSED, token, !finished && !rescheduled).bytes, !model->decoupled);
}

void Exchange::put(const std::string& event, bool with_execution) {
  if (with_execution && execution != nullptr) {
    const std::lock_guard lock(execution->mutex);
    if (execution->open) {
      execution->events += event;
      ++execution->count;
      return;
    }
  }
  Queue::global().put(event);
}

std::string Exchange::prefix() const { return "[request id: " + (id.empty() ? "<id_unknown>" : id) + "] "; }
