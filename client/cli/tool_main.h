// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pinfeed {

// The main function of the tool `pinfeed`. In: a command line. Out: the command's output on stdout, errors on
// stderr, the exit status.
int ToolMain(int argc, char** argv);

}  // namespace pinfeed
