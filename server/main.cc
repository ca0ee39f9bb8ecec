// SPDX-License-Identifier: Apache-2.0
// The program pinfeedd.
#include "server/daemon/daemon_main.h"

int main(int argc, char** argv) {
  return pinfeed::DaemonMain(argc, argv);
}
