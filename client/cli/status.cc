// SPDX-License-Identifier: Apache-2.0
// `pinfeed status`: the daemon's state, with one line per feed that says what it is bound on. Also the health
// check of containers.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/bound_on.h"
#include "client/cli/command.h"
#include "client/cli/hung_line.h"
#include "client/cli/json_field.h"
#include "client/cli/text.h"
#include "common/base/byte_size.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

// Batches held longer than this are reported: few steps take so long.
constexpr double kLongLeaseSeconds = 5;

// A figure with its unit, which its name says.
std::string Cell(const Json& entity, const std::string& figure) {
  const char* const name = figure.c_str();
  if (figure.ends_with("bytes")) return ByteSize(UintField(entity, name));
  if (figure.ends_with("seconds")) return Duration(DoubleField(entity, name));
  if (figure.ends_with("samples") || figure.starts_with("batches")) return Count(UintField(entity, name));
  const std::string text = TextField(entity, name);
  return text.empty() && entity.contains(figure) && !entity[figure].is_string() ? entity[figure].dump()
                                                                                : text;
}

// A column for each figure, under its name.
void PrintTable(const std::vector<std::string>& figures, const Json& rows) {
  if (rows.empty()) return;
  Table table;
  std::vector<std::string> cells;
  for (std::string heading : figures) {
    std::transform(heading.begin(), heading.end(), heading.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
    cells.push_back(std::move(heading));
  }
  table.Add(std::move(cells));
  for (const Json& row : rows) {
    cells.clear();
    for (const std::string& figure : figures) cells.push_back(Cell(row, figure));
    table.Add(cells);
  }
  std::puts("");
  table.Print();
}

void PrintDaemon(const Json& status) {
  const double draining = DoubleField(status, "draining_seconds");
  std::printf("pinfeedd %s is %s%s, up %s (pid %s)\n", Printable(TextField(status, "version")).c_str(),
              Printable(TextField(status, "state")).c_str(),
              draining > 0 ? (" for " + Duration(draining)).c_str() : "",
              Duration(DoubleField(status, "uptime_seconds")).c_str(),
              std::to_string(UintField(status, "pid")).c_str());
  if (const std::string hung = HungLine(status); !hung.empty()) std::puts(hung.c_str());
  const uint64_t kept = UintField(status, "pool_kept_bytes");
  std::printf("backend %s, %llu workers, pool %s of %s used%s, resident memory %s\n",
              Printable(TextField(status, "backend")).c_str(),
              static_cast<unsigned long long>(UintField(status, "workers")),
              ByteSize(UintField(status, "pool_used_bytes")).c_str(),
              ByteSize(UintField(status, "pool_capacity_bytes")).c_str(),
              kept > 0 ? (" (" + ByteSize(kept) + " by ended feeds that processes still map)").c_str() : "",
              ByteSize(UintField(status, "resident_memory_bytes")).c_str());
  if (const uint64_t capacity = UintField(status, "cache_capacity_bytes"); capacity > 0) {
    const uint64_t hits = UintField(status, "cache_hits"), misses = UintField(status, "cache_misses");
    std::printf("cache %s of %s used by %s, %s hits, %s misses, %s, %s decoded ahead\n",
                ByteSize(UintField(status, "cache_used_bytes")).c_str(), ByteSize(capacity).c_str(),
                Counted(UintField(status, "cache_entries"), "image").c_str(), Count(hits).c_str(),
                Count(misses).c_str(), Counted(UintField(status, "cache_evictions"), "eviction").c_str(),
                Count(UintField(status, "cache_made_ahead")).c_str());
  }
  std::printf("%s opened, %s closed, %s\n", Counted(UintField(status, "sessions_opened"), "session").c_str(),
              Count(UintField(status, "sessions_closed")).c_str(),
              Counted(UintField(status, "refusals"), "refusal").c_str());
}

// One line per GPU, with the memory that is quarantined because dead clients' work may still use it.
void PrintGpus(const Json& status) {
  for (const Json& gpu : ListField(status, "gpus")) {
    const uint64_t lingering = UintField(gpu, "lingering_bytes");
    std::printf("%s (%s): %s of %s used%s\n", Printable(TextField(gpu, "uuid")).c_str(),
                Printable(TextField(gpu, "name")).c_str(),
                ByteSize(UintField(gpu, "arena_used_bytes")).c_str(),
                ByteSize(UintField(gpu, "arena_capacity_bytes")).c_str(),
                lingering > 0 ? (", of which " + ByteSize(lingering) + " linger").c_str() : "");
  }
  Json rows = Json::array();
  for (const Json& gpu : ListField(status, "gpus")) {
    for (Json piece : ListField(gpu, "lingering")) {
      std::string pids;
      for (const Json& pid : ListField(piece, "pids"))
        pids += (pids.empty() ? "pid " : ", pid ") + pid.dump();
      piece["lingering_bytes"] = piece["bytes"];
      piece["pids"] = pids + " or a child it forked";
      rows.push_back(std::move(piece));
    }
  }
  if (!rows.empty()) std::puts("\nlingering until the GPU is left by these processes:");
  PrintTable({"lingering_bytes", "backend", "seconds", "pids"}, rows);
}

// What users have of what each may have, as "1.0 GiB of 2.0 GiB".
void PrintUsers(const Json& status) {
  if (ListField(status, "users").empty()) return;
  // Older daemons do not send them.
  const Json limits = status.contains("user_limits") ? status["user_limits"] : Json::object();
  Table table;
  table.Add({"USER", "SESSIONS", "POOL_BYTES", "PINNED_BYTES", "GPU_BYTES", "CACHE_BYTES"});
  for (const Json& user : ListField(status, "users")) {
    const auto of = [&](const char* figure, const char* limit) {
      return Cell(user, figure) + " of " + Cell(limits, limit);
    };
    table.Add({Cell(user, "uid"), of("sessions", "sessions_limit"), of("pool_bytes", "pool_limit_bytes"),
               of("pinned_bytes", "pinned_limit_bytes"), of("gpu_bytes", "gpu_limit_bytes"),
               of("cache_bytes", "cache_limit_bytes")});
  }
  std::puts("");
  table.Print();
}

// The processes that answer batchers' requests, and what each has taken and not answered.
void PrintConsumers(const Json& status) {
  Json rows = Json::array();
  for (const Json& feed : ListField(status, "feeds")) {
    for (Json consumer : ListField(feed, "consumers")) {
      consumer["feed"] = feed["id"];
      rows.push_back(std::move(consumer));
    }
  }
  if (!rows.empty()) std::puts("\nprocesses that answer the requests of batchers:");
  PrintTable({"feed", "pid", "batches_held", "requests_held", "held_seconds"}, rows);
}

// What the table has no column for. `daemon`: the whole status.
void PrintNotes(const Json& feed, const Json& daemon) {
  const std::string name = "feed " + std::to_string(UintField(feed, "id"));
  const char* const id = name.c_str();
  if (const std::string remedy = FeedRemedy(feed, UintField(daemon, "cache_capacity_bytes") != 0);
      !remedy.empty())
    std::printf("%s: its %s would wait less with %s\n", id, IsBatcher(feed) ? "model" : "trainers",
                remedy.c_str());
  const uint64_t hits = UintField(feed, "cache_hits");
  if (const uint64_t looked_up = hits + UintField(feed, "cache_misses"); looked_up != 0)
    std::printf("%s found %s of its images in the cache\n", id,
                Percent(static_cast<double>(hits) / static_cast<double>(looked_up)).c_str());
  if (const std::string line = FeedReadAhead(feed); !line.empty()) std::puts(line.c_str());
  const std::string decode = TextField(feed, "decode");
  if (!decode.empty() && decode != "cpu")
    std::printf("%s has its images decoded by the trainers' GPUs: decode %s\n", id,
                Printable(decode).c_str());
  if (const uint64_t workers = UintField(feed, "max_workers");
      workers != 0 && workers < UintField(daemon, "workers"))
    std::printf("%s is loaded by at most %s at once: %s\n", id, Counted(workers, "worker").c_str(),
                decode == "cpu" ? "its batches are small"
                                : "its trainers' decoders, and other ranks', need processors, too");
  if (const uint64_t bytes = UintField(feed, "resident_bytes"); bytes != 0)
    std::printf("%s has its samples in %s of a GPU's memory%s\n", id, ByteSize(bytes).c_str(),
                feed.value("resident_loading", false) ? ", into which they are being loaded" : "");
  if (const std::string note = TextField(feed, "resident_note"); !note.empty())
    std::printf("%s has no resident samples: %s\n", id, Printable(note).c_str());
  const uint64_t producers = UintField(feed, "producers"), again = UintField(feed, "batches_dealt_again");
  if (producers != 0 || again != 0) {
    std::printf("%s has %s, %s with a batch to fill", id, Counted(producers, "producer").c_str(),
                Count(UintField(feed, "producers_busy")).c_str());
    if (const std::string end = TextField(feed, "data_end"); !end.empty())
      std::printf("; the feed's data end before %s", Printable(end).c_str());
    if (const std::string slowest = SlowestProducer(feed); !slowest.empty())
      std::printf("; %s", slowest.c_str());
    if (again != 0)
      std::printf("; %s dealt again because a producer ended or took too long",
                  Counted(again, "batch").c_str());
    std::puts("");
  }
  if (const uint64_t batches = UintField(feed, "one_off_batches"); batches != 0)
    std::printf(
        "%s had %s larger than a slot, in memory of their own: %s now, %s at most; max_batch_bytes= makes "
        "room\n",
        id, Counted(batches, "batch").c_str(), ByteSize(UintField(feed, "one_off_bytes")).c_str(),
        ByteSize(UintField(feed, "one_off_peak_bytes")).c_str());
  if (!feed.contains("request_latency_seconds") || feed["request_latency_seconds"].is_null()) return;
  const Json& latency = feed["request_latency_seconds"];
  std::printf("%s answered requests within %s (p50), %s (p90), %s (p99); %s wait\n", id,
              Duration(DoubleField(latency, "p50")).c_str(), Duration(DoubleField(latency, "p90")).c_str(),
              Duration(DoubleField(latency, "p99")).c_str(),
              Count(UintField(feed, "requests_waiting")).c_str());
}

void PrintFeeds(const Json& status) {
  Json rows = Json::array();
  for (Json feed : ListField(status, "feeds")) {
    feed["feed"] = feed["id"];
    feed["bound_on"] = FeedBoundOn(feed);
    rows.push_back(std::move(feed));
  }
  if (rows.empty()) std::puts("\nno feeds are open");
  PrintTable({"feed", "dataset", "state", "epoch", "batch_index", "slots_free", "slots_filling",
              "slots_ready", "slots_lent", "samples", "batch_bytes", "bad_samples", "bound_on"},
             rows);
  for (const Json& feed : rows) PrintNotes(feed, status);
  PrintConsumers(status);
}

void PrintSessions(const Json& status) {
  Json rows = Json::array();
  for (const Json& feed : ListField(status, "feeds")) {
    for (Json session : ListField(feed, "sessions")) {
      session["session"] = session["id"];
      session["feed"] = feed["id"];
      session["feed_runs"] = TextField(feed, "state") == "running";
      session["bound_on"] = SessionBoundOn(session, feed);
      rows.push_back(std::move(session));
    }
  }
  PrintTable({"session", "feed", "client_name", "pid", "uid", "state", "backend", "batches_taken",
              "slots_ready", "slots_held", "wait_seconds", "bound_on"},
             rows);
  for (const Json& session : rows) {
    const std::string id = std::to_string(UintField(session, "id"));
    const std::string name = Printable(TextField(session, "client_name"));
    // While a trainer waits for a batch, it usually still has the one before.
    const bool waits = session["feed_runs"].get<bool>() && UintField(session, "slots_ready") == 0 &&
                       UintField(session, "slots_held") <= 1;
    if (const double age = DoubleField(session, "lease_age_seconds"); age > kLongLeaseSeconds && !waits) {
      std::printf("session %s (%s, pid %s) has %s for %s: is its process stopped or hanging?\n", id.c_str(),
                  name.c_str(), std::to_string(UintField(session, "pid")).c_str(),
                  UintField(session, "slots_held") > 0 ? "held a batch" : "taken no batch",
                  Duration(age).c_str());
    }
    if (const uint64_t copied = UintField(session, "batches_copied"); copied > 0) {
      std::printf("session %s (%s) copied %s batches: the trainer holds too many; raise slots\n", id.c_str(),
                  name.c_str(), Count(copied).c_str());
    }
    if (const std::string why = TextField(session, "fallback"); !why.empty())
      std::printf("session %s has no better backend: %s\n", id.c_str(), Printable(why).c_str());
  }
}

void RunStatus(bool json, ToolContext& context) {
  const std::vector<PrivateDaemon> beside = ChooseDaemon(context);
  const Json status = Json::parse(StatusJson(context.address));
  if (json) {
    std::puts(status.dump(2, ' ', true).c_str());
  } else {
    PrintDaemon(status);
    PrintGpus(status);
    PrintFeeds(status);
    PrintSessions(status);
    PrintUsers(status);
    if (!beside.empty()) std::puts("\nprivate daemons of your own trainers (not included above):");
    for (const PrivateDaemon& daemon : beside) std::printf("  %s\n", Describe(daemon).c_str());
  }
  const std::string state = TextField(status, "state");
  if (state == "ready") return;
  std::fprintf(stderr, "pinfeed: the daemon is %s: it takes no new feeds\n", Printable(state).c_str());
  context.exit_status = kExitFailed;
}

}  // namespace

void AddStatusCommand(CLI::App& tool, ToolContext& context) {
  CLI::App* command = tool.add_subcommand(
      "status",
      "Shows what the daemon is doing. Exit status: 0 if it is ready, 1 if it is not or cannot be reached.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print pinfeed.v1.GetStatusResponse as JSON");
  command->callback([json, &context] { RunStatus(*json, context); });
}

}  // namespace pinfeed
