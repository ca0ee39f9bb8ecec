// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pinfeed {

// The main function of pinfeedd: parse, check, start, run. Returns 0 if the daemon ended as asked, 1 if it
// could not start now or a GPU broke, and 2 if the configuration is wrong, in itself or for this host:
// starting again does not help.
int DaemonMain(int argc, char** argv);

}  // namespace pinfeed
