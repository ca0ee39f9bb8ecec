// SPDX-License-Identifier: Apache-2.0
// Where the wheel's two programs (launcher.c) enter the library that holds everything.
#include "client/cli/tool_main.h"
#include "server/daemon/daemon_main.h"

extern "C" [[gnu::visibility("default")]] int pinfeed_run(int argc, char** argv) {
  return pinfeed::ToolMain(argc, argv);
}

extern "C" [[gnu::visibility("default")]] int pinfeedd_run(int argc, char** argv) {
  return pinfeed::DaemonMain(argc, argv);
}
