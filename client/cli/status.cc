// SPDX-License-Identifier: Apache-2.0
// `pinfeed status`: the daemon's state, with one line per feed that says what it is bound on. Also the health
// check of containers.
#include <algorithm>
#include <cstdio>
#include <memory>
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

struct StatusOptions {
  bool json = false;
};

void PrintDaemon(const Json& status) {
  const double draining = DoubleField(status, "draining_seconds");
  std::printf("pinfeedd %s is %s%s, up %s (pid %s)\n", Printable(TextField(status, "version")).c_str(),
              Printable(TextField(status, "state")).c_str(),
              draining > 0 ? (" since " + Duration(draining)).c_str() : "",
              Duration(DoubleField(status, "uptime_seconds")).c_str(),
              std::to_string(UintField(status, "pid")).c_str());
  if (const std::string hung = HungLine(status); !hung.empty()) std::puts(hung.c_str());
  std::printf("backend %s, %llu workers, pool %s of %s in use, resident %s\n",
              Printable(TextField(status, "backend")).c_str(),
              static_cast<unsigned long long>(UintField(status, "workers")),
              ByteSize(UintField(status, "pool_used_bytes")).c_str(),
              ByteSize(UintField(status, "pool_capacity_bytes")).c_str(),
              ByteSize(UintField(status, "resident_bytes")).c_str());
  std::printf("%s opened, %s closed, %s refused\n",
              Counted(UintField(status, "sessions_opened"), "session").c_str(),
              Count(UintField(status, "sessions_closed")).c_str(),
              Counted(UintField(status, "refused_requests"), "request").c_str());
}

// One line per GPU, with the memory that is quarantined because dead clients' work may still use it.
void PrintGpus(const Json& status) {
  for (const Json& gpu : ListField(status, "gpus")) {
    const uint64_t lingering = UintField(gpu, "lingering_bytes");
    std::printf("%s (%s): %s of %s in use%s\n", Printable(TextField(gpu, "uuid")).c_str(),
                Printable(TextField(gpu, "name")).c_str(),
                ByteSize(UintField(gpu, "arena_used_bytes")).c_str(),
                ByteSize(UintField(gpu, "arena_capacity_bytes")).c_str(),
                lingering > 0 ? (", of which " + ByteSize(lingering) + " linger").c_str() : "");
  }
  Table table;
  table.Add({"LINGERS", "BACKEND", "SINCE", "UNTIL THE GPU IS LEFT BY"});
  bool any = false;
  for (const Json& gpu : ListField(status, "gpus")) {
    for (const Json& piece : ListField(gpu, "lingering")) {
      any = true;
      std::string pids;
      for (const Json& pid : ListField(piece, "pids"))
        pids += (pids.empty() ? "pid " : ", pid ") + pid.dump();
      table.Add({ByteSize(UintField(piece, "bytes")), TextField(piece, "backend"),
                 Duration(DoubleField(piece, "seconds")), pids + " or a child it forked"});
    }
  }
  if (!any) return;
  std::puts("");
  table.Print();
}

// Users by memory in use, as "1.0 GiB of 2.0 GiB".
void PrintUsers(const Json& status) {
  if (ListField(status, "users").empty()) return;
  const Json limits = status.contains("user_limits") ? status["user_limits"]
                                                     : Json::object();  // older daemons do not send them
  Table table;
  table.Add({"USER", "SESSIONS", "POOL", "PINNED", "GPU"});
  for (const Json& user : ListField(status, "users")) {
    const auto bytes = [&](const char* name) {
      return ByteSize(UintField(user, name)) + " of " + ByteSize(UintField(limits, name));
    };
    table.Add(
        {std::to_string(UintField(user, "uid")),
         std::to_string(UintField(user, "sessions")) + " of " + std::to_string(UintField(limits, "sessions")),
         bytes("pool_bytes"), bytes("pinned_bytes"), bytes("gpu_bytes")});
  }
  std::puts("");
  table.Print();
}

void PrintFeeds(const Json& status) {
  const Json& feeds = ListField(status, "feeds");
  if (feeds.empty()) {
    std::puts("\nno feeds are open");
    return;
  }
  std::puts("");
  Table table;
  table.Add({"FEED", "DATASET", "STATE", "EPOCH", "BATCH", "SLOTS free/filling/filled/published", "SAMPLES",
             "BYTES", "BAD", "BOUND ON"});
  for (const Json& feed : feeds) {
    const auto number = [&](const char* name) { return std::to_string(UintField(feed, name)); };
    table.Add({number("id"), TextField(feed, "dataset"), TextField(feed, "state"), number("epoch"),
               number("batch_index"),
               number("slots_free") + "/" + number("slots_filling") + "/" + number("slots_ready") + "/" +
                   number("slots_lent"),
               Count(UintField(feed, "samples")), ByteSize(UintField(feed, "bytes")),
               Count(UintField(feed, "bad_samples")), FeedBoundOn(feed)});
  }
  table.Print();
}

void PrintSessions(const Json& status) {
  Table table;
  table.Add({"SESSION", "FEED", "CLIENT", "PID", "UID", "STATE", "BACKEND", "TAKEN", "READY", "HELD",
             "WAITED", "BOUND ON"});
  bool any = false;
  for (const Json& feed : ListField(status, "feeds")) {
    for (const Json& session : ListField(feed, "sessions")) {
      any = true;
      const auto number = [&](const char* name) { return std::to_string(UintField(session, name)); };
      const uint64_t held = UintField(session, "slots_held");
      const uint64_t ready =
          UintField(session, "slots_lent") - std::min(held, UintField(session, "slots_lent"));
      table.Add({number("id"), std::to_string(UintField(feed, "id")), TextField(session, "client_name"),
                 number("pid"), number("uid"), TextField(session, "state"), TextField(session, "backend"),
                 Count(UintField(session, "batches_taken")), std::to_string(ready), std::to_string(held),
                 Duration(DoubleField(session, "wait_seconds")), SessionBoundOn(session, feed)});
    }
  }
  if (!any) return;
  std::puts("");
  table.Print();
  for (const Json& feed : ListField(status, "feeds")) {
    for (const Json& session : ListField(feed, "sessions")) {
      if (const double age = DoubleField(session, "oldest_lease_seconds"); age > kLongLeaseSeconds) {
        std::printf("session %s (%s, pid %s) has held a batch for %s: is its process stopped or hanging?\n",
                    std::to_string(UintField(session, "id")).c_str(),
                    Printable(TextField(session, "client_name")).c_str(),
                    std::to_string(UintField(session, "pid")).c_str(), Duration(age).c_str());
      }
      if (const uint64_t copied = UintField(session, "batches_copied"); copied > 0) {
        std::printf("session %s (%s) copied %s batches: the trainer holds too many; raise slots\n",
                    std::to_string(UintField(session, "id")).c_str(),
                    Printable(TextField(session, "client_name")).c_str(), Count(copied).c_str());
      }
      if (const std::string why = TextField(session, "fallback"); !why.empty())
        std::printf("session %s has no better backend: %s\n",
                    std::to_string(UintField(session, "id")).c_str(), Printable(why).c_str());
    }
  }
}

void RunStatus(const StatusOptions& options, ToolContext& context) {
  const std::vector<PrivateDaemon> beside = ChooseDaemon(context);
  const std::string text = StatusJson(context.address);
  const Json status = Json::parse(text);
  if (options.json) {
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
  const auto options = std::make_shared<StatusOptions>();
  command->add_flag("--json", options->json, "print pinfeed.v1.GetStatusResponse as JSON");
  command->callback([options, &context] { RunStatus(*options, context); });
}

}  // namespace pinfeed
