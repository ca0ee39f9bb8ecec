// SPDX-License-Identifier: Apache-2.0
//
// Daemon and trainer in different namespaces and of different users, as containers make them: which ways of
// sharing work?
#include "worker.h"

namespace pinfeed {
namespace {

constexpr int kContainer = CLONE_NEWPID | CLONE_NEWNS;

std::string Check(Worker* client, const Answer& opened) {
  if (opened.result != CUDA_SUCCESS) return CuName(opened.result);
  const Answer check = client->Call({.op = Op::kVerify, .seed = 5});
  client->Call({.op = Op::kDrop});
  if (check.result != CUDA_SUCCESS) return "opens, then " + CuName(check.result);
  return check.value == 0 ? "ok" : "wrong bytes";
}

void Run(Report* report, const Place& daemon_place, const Place& client_place) {
  const std::string scenario = "daemon: " + daemon_place.name + "; client: " + client_place.name;
  Worker daemon(daemon_place);
  Worker client(client_place);
  int fd = -1;
  Command make{.op = Op::kExport, .bytes = 4 << 20, .seed = 5};
  const Offer by_fd = daemon.Call(make, -1, &fd).offer;
  make.index = 1;
  make.offer.backend = Backend::kLegacy;
  const Offer legacy = daemon.Call(make).offer;
  const Answer event = daemon.Call({.op = Op::kMakeEvent});
  CU(daemon.Call({.op = Op::kRecordEvent}).result);

  const std::string vmm_seen =
      Check(&client, client.Call({.op = Op::kImport, .flag = true, .offer = by_fd}, fd));
  close(fd);
  report->Rely(scenario, "vmm-fd", vmm_seen, vmm_seen == "ok");
  report->Say(scenario, "cuda-ipc memory", Check(&client, client.Call({.op = Op::kImport, .offer = legacy})));
  CUresult opened = event.result;
  if (opened == CUDA_SUCCESS) opened = client.Call({.op = Op::kOpenEvent, .event = event.event}).result;
  if (opened == CUDA_SUCCESS) opened = client.Call({.op = Op::kSyncEvent}).result;
  report->Say(scenario, "IPC event", CuName(opened));

  int lifeline = -1;
  client.Call({.op = Op::kLifeline}, -1, &lifeline);
  const std::uint64_t peer = daemon.Call({.op = Op::kPeer}, lifeline).value;
  close(lifeline);
  report->Rely(scenario, "the client as the daemon knows it",
               std::string(peer / 2 == 0 ? "no pid" : "its pid") + " by SO_PEERCRED, " +
                   (peer % 2 == 0 ? "not listed" : "listed") + " by the daemon's NVML",
               (peer / 2 != 0) == (peer % 2 != 0));
}

}  // namespace
}  // namespace pinfeed

int main() {
  using pinfeed::Place;
  pinfeed::LoadKernelImage();
  pinfeed::Report report("8 identity");
  const Place same{};
  const Place shm{"own /dev/shm", CLONE_NEWNS, true};
  const Place ipc{"own IPC namespace", CLONE_NEWIPC};
  const Place mounts{"own mount namespace", CLONE_NEWNS};
  const Place pid1{"PID namespace, pid 1", pinfeed::kContainer};
  const Place pid2{"PID namespace, pid 2", pinfeed::kContainer, false, true};
  const Place container1{"PID+IPC+mount namespaces, own /dev/shm, pid 1", pinfeed::kContainer | CLONE_NEWIPC,
                         true};
  const Place container2{"PID+IPC+mount namespaces, own /dev/shm, pid 2", pinfeed::kContainer | CLONE_NEWIPC,
                         true, true};
  const Place user1{"user 1001", 0, false, false, 1001};
  const Place user2{"user 1002", 0, false, false, 1002};
  const Place user_namespace{"own user namespace", CLONE_NEWUSER};
  const std::pair<Place, Place> pairs[] = {
      {same, same},
      {same, shm},
      {same, ipc},
      {same, mounts},
      {same, pid1},
      {same, pid2},
      {pid1, pid1},
      {pid1, pid2},
      {pid1, same},
      {container1, container1},
      {container1, container2},
      {same, user1},
      {user1, same},
      {user1, user2},
      {user1, user1},
      {same, user_namespace},
  };
  for (const auto& [daemon, client] : pairs) pinfeed::Run(&report, daemon, client);
  return report.ExitStatus();
}
