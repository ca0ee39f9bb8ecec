// SPDX-License-Identifier: Apache-2.0
#include "client/cli/top_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "client/cli/bound_on.h"
#include "client/cli/hung_line.h"
#include "client/cli/text.h"
#include "common/base/byte_size.h"

namespace pinfeed {
namespace {

constexpr size_t kBarWidth = 20;
constexpr size_t kMaxGpus = 4;
constexpr size_t kBoundWidth = 16;
// From this width on there is room for the dataset's name.
constexpr size_t kWide = 100;
// Below this width process ids and rates give way to what a session waits for.
constexpr size_t kNarrow = 78;
constexpr std::array<const char*, 6> kCauses = {"read", "decode", "workers", "copy", "consumer", "group"};
// Below this share, one word describes the session: a feed that keeps up waits for its trainer now and then.
constexpr double kShareWorthNaming = 0.01;

struct Row {
  double waited = 0;  // share of the time
  std::string text;
};

std::string Ascii(const std::string& text) {
  std::string out;
  for (const char c : Printable(text)) out += static_cast<unsigned char>(c) < 0x80 ? c : '?';
  return out;
}

std::string Left(std::string text, size_t width) {
  text.resize(width, ' ');
  return text;
}

std::string Right(const std::string& text, size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

std::string BarLine(const std::string& name, double part, double whole) {
  const double share = whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0;
  const auto full = static_cast<size_t>(std::lround(share * kBarWidth));
  return Left(name, 9) + "[" + std::string(full, '#') + std::string(kBarWidth - full, '.') + "] " +
         Right(Percent(share), 4) + "  ";
}

// Returns the entry of `list` that has the key's value of `like`; null if there is none.
const Json* FindLike(const Json& like, const char* key, const Json& list) {
  const auto found = std::ranges::find_if(
      list, [&](const Json& entry) { return entry.value(key, Json()) == like.value(key, Json()); });
  return found == list.end() ? nullptr : &*found;
}

// Growth per second. 0 without an earlier figure, or if the figure fell because the daemon restarted.
double Rate(double before, double now, double seconds) {
  return seconds > 0 && now > before ? (now - before) / seconds : 0;
}

double UintRate(const Json* before, const Json& now, const char* name, double seconds) {
  if (before == nullptr) return 0;
  return Rate(static_cast<double>(UintField(*before, name)), static_cast<double>(UintField(now, name)),
              seconds);
}

double Stall(const Json* session, const char* cause) {
  if (session == nullptr) return 0;
  const auto stall = session->find("stall_seconds");
  return stall != session->end() && stall->is_object() ? DoubleField(*stall, cause) : 0;
}

// Returns the last two parts of a path, which distinguish one "train" from another.
std::string EndOf(const std::string& path) {
  const size_t last = path.find_last_of('/');
  if (last == std::string::npos || last == 0) return path;
  const size_t before = path.find_last_of('/', last - 1);
  return before == std::string::npos ? path : path.substr(before + 1);
}

Row SessionRow(const Json& session, const Json* before, const Json& feed, double seconds, size_t width) {
  Row row;
  double largest = 0;
  std::string cause;
  const std::string trainer = IsBatcher(feed) ? "model" : "trainer";
  for (const char* const each : kCauses) {
    const double share = before == nullptr ? 0 : Rate(Stall(before, each), Stall(&session, each), seconds);
    const std::string_view name = each;
    if (name != "consumer") row.waited += share;
    if (share > largest) cause = name == "consumer" ? trainer : name == "group" ? "its group" : each;
    largest = std::max(largest, share);
  }
  // Causes of waiting are told up to 2 s late, the waiting itself at once.
  const double waits = before == nullptr ? 0
                                         : Rate(DoubleField(*before, "wait_seconds"),
                                                DoubleField(session, "wait_seconds"), seconds);
  if (!AwaitsRequests(feed)) row.waited = std::max(row.waited, waits);  // else it waits as it should
  row.waited = std::min(row.waited, 1.0);
  const std::string state = TextField(session, "state");
  std::string bound = AwaitsRequests(feed) ? "requests" : "-";
  if (largest >= kShareWorthNaming) {
    bound = cause + " " + Percent(std::min(largest, 1.0));
  } else if (waits >= kShareWorthNaming) {
    // Of the last 15 s, in which the trainer may have been slow before it began to wait.
    const std::string lately = SessionBoundOn(session, feed);
    if (TextField(feed, "state") == "waiting")
      bound = "its group";
    else if (!lately.starts_with(trainer))
      bound = lately;
  }
  if (state != "attached") bound = "(" + state + ")";
  const uint64_t held = UintField(session, "slots_held");
  const bool narrow = width < kNarrow;
  const std::string rate =
      before == nullptr ? "-" : Fixed(UintRate(before, session, "batches_taken", seconds), 1);
  row.text = Right(std::to_string(UintField(session, "id")), 7) +
             Right(std::to_string(UintField(feed, "id")), 6) +
             (narrow ? "" : Right(std::to_string(UintField(session, "pid")), 9)) + "  " +
             Left(Ascii(TextField(session, "client_name")), 16) + (narrow ? "" : Right(rate, 9)) +
             Right(std::to_string(UintField(session, "slots_ready")) + "/" + std::to_string(held), 7) +
             Right(before == nullptr ? "-" : Percent(row.waited), 6) + "  ";
  row.text += width >= kWide ? Left(Ascii(bound), kBoundWidth) + Ascii(EndOf(TextField(feed, "dataset")))
                             : Ascii(bound);
  return row;
}

void AddGpus(const Json& before, const Json& now, double seconds, std::vector<std::string>& lines) {
  const Json& gpus = ListField(now, "gpus");
  for (size_t i = 0; i < std::min(gpus.size(), kMaxGpus); ++i) {
    const Json* const was = FindLike(gpus[i], "uuid", ListField(before, "gpus"));
    const uint64_t used = UintField(gpus[i], "arena_used_bytes");
    const uint64_t capacity = UintField(gpus[i], "arena_capacity_bytes");
    lines.push_back(
        BarLine("gpu " + std::to_string(i), static_cast<double>(used), static_cast<double>(capacity)) +
        ByteSize(used) + " of " + ByteSize(capacity) + ", " +
        ByteRate(UintRate(was, gpus[i], "copied_bytes", seconds)));
  }
  if (gpus.size() > kMaxGpus) lines.push_back(Counted(gpus.size() - kMaxGpus, "more GPU"));
}

}  // namespace

std::vector<std::string> TopScreen(const Json& before, const Json& now, double seconds, size_t width,
                                   size_t height) {
  std::vector<std::string> lines;
  lines.push_back("pinfeedd " + Ascii(TextField(now, "version")) + " is " + Ascii(TextField(now, "state")) +
                  ", up " + Duration(DoubleField(now, "uptime_seconds")) + ", pid " +
                  std::to_string(UintField(now, "pid")) + ". q quits");
  if (const std::string hung = HungLine(now); !hung.empty()) lines.push_back(Ascii(hung));
  const uint64_t used = UintField(now, "pool_used_bytes");
  const uint64_t capacity = UintField(now, "pool_capacity_bytes");
  lines.push_back(BarLine("pool", static_cast<double>(used), static_cast<double>(capacity)) + ByteSize(used) +
                  " of " + ByteSize(capacity));
  if (const uint64_t cache = UintField(now, "cache_capacity_bytes"); cache > 0) {
    const uint64_t cached = UintField(now, "cache_used_bytes");
    lines.push_back(BarLine("cache", static_cast<double>(cached), static_cast<double>(cache)) +
                    ByteSize(cached) + " of " + ByteSize(cache));
  }
  const uint64_t busy = UintField(now, "workers_busy");
  const uint64_t workers = UintField(now, "workers");
  lines.push_back(BarLine("workers", static_cast<double>(busy), static_cast<double>(workers)) +
                  std::to_string(busy) + " of " + std::to_string(workers) + " busy");
  AddGpus(before, now, seconds, lines);

  double samples = 0;
  double bytes = 0;
  std::vector<Row> rows;
  for (const Json& feed : ListField(now, "feeds")) {
    const Json* const was = FindLike(feed, "id", ListField(before, "feeds"));
    samples += UintRate(was, feed, "samples", seconds);
    bytes += UintRate(was, feed, "batch_bytes", seconds);
    for (const Json& session : ListField(feed, "sessions")) {
      const Json* const session_was =
          was == nullptr ? nullptr : FindLike(session, "id", ListField(*was, "sessions"));
      rows.push_back(SessionRow(session, session_was, feed, seconds, width));
    }
  }
  lines.push_back(Counted(ListField(now, "feeds").size(), "feed") + ", " + Counted(rows.size(), "session") +
                  (before.is_object()
                       ? ", " + Count(static_cast<uint64_t>(samples)) + " samples/s, " + ByteRate(bytes)
                       : ", measuring ..."));
  lines.emplace_back();
  lines.push_back(
      std::string(width < kNarrow
                      ? "SESSION  FEED  CLIENT          RDY/HLD  WAIT  BOUND ON"
                      : "SESSION  FEED      PID  CLIENT            BATCH/s  RDY/HLD WAIT  BOUND ON") +
      (width >= kWide ? "        DATASET" : ""));
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.waited > b.waited; });
  const size_t room = height > lines.size() ? height - lines.size() : 0;
  const size_t shown = rows.size() <= room ? rows.size() : room - std::min<size_t>(room, 1);
  for (size_t i = 0; i < shown; ++i) lines.push_back(rows[i].text);
  if (shown < rows.size()) lines.push_back("... and " + Counted(rows.size() - shown, "more session"));

  lines.resize(std::min(lines.size(), height));
  for (std::string& line : lines) line.resize(std::min(line.size(), width));
  return lines;
}

}  // namespace pinfeed
