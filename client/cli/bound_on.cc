// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bound_on.h"

#include <algorithm>
#include <array>
#include <utility>

#include "client/cli/text.h"
#include "common/base/byte_size.h"

namespace pinfeed {
namespace {

constexpr std::array<const char*, 4> kDataCauses = {"read", "decode", "workers", "copy"};
// Smaller shares of the time are not worth reporting: neither side really waits for the other.
constexpr double kWorthNaming = 0.03;
// The alert PinfeedDataBound fires above this share.
constexpr double kWorthActing = 0.2;
constexpr double kNearlyAllCached = 0.95;
constexpr double kLongTaskSeconds = 2;  // of a producer; shorter ones are usual

// docs/runbook.md, PinfeedDataBound.
constexpr std::array<std::pair<const char*, const char*>, 3> kRemedies = {{
    {"read", "faster or local storage, fewer feeds at once"},
    {"workers", "fewer feeds on this host, more processors"},
    {"copy", "fewer feeds on this link, dtypes of fewer bytes"},
}};

struct Bound {
  std::string on;  // the cause
  double share = 0;
};

// The recent shares; null if the daemon does not report them.
const Json* Recent(const Json& object) {
  const auto found = object.find("recent");
  return found != object.end() && found->is_object() ? &*found : nullptr;
}

double RecentlySlow(const Json& session) {
  const Json* const recent = Recent(session);
  return recent != nullptr && TextField(session, "state") == "attached" ? DoubleField(*recent, "consumer")
                                                                        : 0;
}

// The largest cause of waiting for data, with its share.
Bound LargestDataCause(const Json& shares) {
  Bound largest;
  for (const char* const cause : kDataCauses)
    if (const double share = DoubleField(shares, cause); share > largest.share) largest = {cause, share};
  return largest;
}

// The same rule as the daemon's bound_on of the whole run.
Bound Of(const Json& shares) {
  double data = 0;
  for (const char* const cause : kDataCauses) data += DoubleField(shares, cause);
  const double consumer = DoubleField(shares, "consumer");
  if (consumer >= data) return {"consumer", consumer};
  return {LargestDataCause(shares).on, data};
}

Bound BoundOf(const Json& feed) {
  const Json* const recent = Recent(feed);
  return recent != nullptr ? Of(*recent)
                           : Bound{TextField(feed, "bound_on"), DoubleField(feed, "bound_share")};
}

// The only session that its feed has waited for; null if there are several, or none.
const Json* Slowest(const Json& feed) {
  const Json& sessions = ListField(feed, "sessions");
  const Json* slowest = nullptr;
  for (const Json& session : sessions)
    if (RecentlySlow(session) > (slowest == nullptr ? 0 : RecentlySlow(*slowest))) slowest = &session;
  if (slowest == nullptr) return nullptr;
  const double slowest_share = RecentlySlow(*slowest);
  const auto slow = std::ranges::count_if(
      sessions, [&](const Json& session) { return RecentlySlow(session) > slowest_share / 2; });
  return slow == 1 ? slowest : nullptr;
}

// Whom a feed waits for before its first batch. Older daemons do not tell a group's size.
std::string AwaitedTrainers(const Json& feed) {
  const uint64_t size = UintField(feed, "group_size");
  if (size == 0) return "trainers: some have not attached";
  const Json& sessions = ListField(feed, "sessions");
  const auto there = std::ranges::count_if(
      sessions, [](const Json& session) { return TextField(session, "state") == "attached"; });
  return "its group: " + std::to_string(there) + " of " + std::to_string(size) + " members are there";
}

std::string NameOf(const Json& session) {
  return "session " + std::to_string(UintField(session, "id")) + " (" + TextField(session, "client_name") +
         ")";
}

std::string BroadcastRemedy(const Json& feed) {
  if (TextField(feed, "sharing") == "broadcast") return "";
  return ", one feed for all trainers of the host (broadcast)";
}

// Only what the feed does not have yet. A cache that it never looked into does not serve it.
std::string DecodeRemedy(const Json& feed, bool has_cache) {
  std::string always = "smaller images, more processors";
  if (IsBatcher(feed) || UintField(feed, "producers") != 0) return always;
  std::string remedy;
  const uint64_t hits = UintField(feed, "cache_hits");
  const uint64_t lookups = hits + UintField(feed, "cache_misses");
  if (lookups == 0 && !has_cache && TextField(feed, "decode") == "cpu")
    remedy += "cache_bytes (for images), ";
  else if (lookups != 0 && static_cast<double>(hits) < kNearlyAllCached * static_cast<double>(lookups))
    remedy += "more cache_bytes if the decoded images do not fit, ";
  if (TextField(feed, "memory") == "gpu" && TextField(feed, "decode") == "cpu") remedy += "decode=\"gpu\", ";
  return remedy + always + BroadcastRemedy(feed);
}

// Its shares stay as they were when it last ran.
bool IsOver(const Json& feed) {
  const std::string state = TextField(feed, "state");
  return state == "ended" || state == "draining" || state == "failed";
}

}  // namespace

bool IsBatcher(const Json& feed) {
  return !ListField(feed, "consumers").empty();
}

bool AwaitsRequests(const Json& feed) {
  return IsBatcher(feed) && UintField(feed, "requests") == UintField(feed, "requests_ended");
}

std::string FeedBoundOn(const Json& feed) {
  const std::string state = TextField(feed, "state");
  if (state == "failed") return "failed: " + TextField(feed, "error");
  if (state == "waiting") return AwaitedTrainers(feed);
  if (IsOver(feed)) return "nothing: it is " + state;
  const Bound bound = BoundOf(feed);
  if (bound.on.empty()) return "nothing measured yet";
  const std::string share =
      " (" + Percent(bound.share) + (Recent(feed) != nullptr ? " of the time lately)" : " of all its time)");
  if (bound.share < kWorthNaming) {
    return AwaitsRequests(feed) ? "requests: the batcher waits for them" : "nothing: nobody waits" + share;
  }
  const std::string trainer = IsBatcher(feed) ? "the model" : "the trainer";
  if (bound.on != "consumer") return bound.on + ": " + trainer + " waits for batches" + share;
  if (ListField(feed, "sessions").size() <= 1) return trainer + ": batches wait for it" + share;
  const Json* const slowest = Slowest(feed);
  if (slowest == nullptr)
    return (IsBatcher(feed) ? "the model's processes" : "the trainers") + (": batches wait for them" + share);
  return NameOf(*slowest) + ": batches wait for it" + share;
}

std::string SlowestProducer(const Json& feed) {
  const double seconds = DoubleField(feed, "slowest_producer_seconds");
  if (seconds < kLongTaskSeconds) return "";
  return "process " + std::to_string(UintField(feed, "slowest_producer_pid")) + " has been at " +
         Printable(TextField(feed, "slowest_producer_task")) + " for " + Duration(seconds);
}

std::string FeedRemedy(const Json& feed, bool has_cache) {
  const Bound bound = BoundOf(feed);
  if (TextField(feed, "state") != "running" || bound.share < kWorthActing) return "";
  if (bound.on == "decode") return DecodeRemedy(feed, has_cache);
  if (UintField(feed, "producers") != 0 && bound.on != "copy" && bound.on != "consumer") {
    const std::string slowest = SlowestProducer(feed);
    if (!slowest.empty() && UintField(feed, "slots_ready") != 0)
      return "batches of equal work, or retry_after= if that hangs: later ones are ready, but " + slowest;
    return "more processes that fill batches (num_workers)";
  }
  const auto* const found =
      std::ranges::find_if(kRemedies, [&](const auto& remedy) { return bound.on == remedy.first; });
  if (found == kRemedies.end()) return "";
  return std::string(found->second) + (bound.on == "read" ? BroadcastRemedy(feed) : "");
}

std::string FeedReadAhead(const Json& feed) {
  const uint64_t samples = UintField(feed, "read_ahead_samples");
  const bool on = feed.value("read_ahead_on", false);
  if (samples == 0 && !on) return "";
  return "feed " + std::to_string(UintField(feed, "id")) + " asked the disk for " +
         Counted(samples, "sample") + " (" + ByteSize(UintField(feed, "read_ahead_bytes")) +
         ") ahead of its workers; switched on " + Counted(UintField(feed, "read_ahead_starts"), "time") +
         ", " + (on ? "reading ahead now" : "off now: the page cache has what it reads");
}

std::string SessionBoundOn(const Json& session, const Json& feed) {
  const Json* const recent = Recent(session);
  if (recent == nullptr || TextField(session, "state") != "attached" || IsOver(feed)) return "-";
  Bound largest = LargestDataCause(*recent);
  if (const double share = DoubleField(*recent, "consumer"); share > largest.share)
    largest = {IsBatcher(feed) ? "model" : "trainer", share};
  if (const double share = DoubleField(*recent, "group"); share > largest.share) {
    const Json* const slowest = Slowest(feed);
    const bool known = slowest != nullptr && UintField(*slowest, "id") != UintField(session, "id");
    largest = {known ? NameOf(*slowest) : "another of its group", share};
  }
  if (largest.share < kWorthNaming) return AwaitsRequests(feed) ? "requests" : "-";
  return largest.on + " " + Percent(largest.share);
}

}  // namespace pinfeed
