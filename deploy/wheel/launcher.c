// SPDX-License-Identifier: Apache-2.0
// A program of the wheel: enters the function of libpinfeed.so that is compiled in as RUN_PROGRAM.
int RUN_PROGRAM(int argc, char** argv);

int main(int argc, char** argv) {
  return RUN_PROGRAM(argc, argv);
}
