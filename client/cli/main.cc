// SPDX-License-Identifier: Apache-2.0
// The program pinfeed.
#include "client/cli/tool_main.h"

int main(int argc, char** argv) {
  return pinfeed::ToolMain(argc, argv);
}
