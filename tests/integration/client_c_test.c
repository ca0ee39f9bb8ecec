/* SPDX-License-Identifier: Apache-2.0
 * The header from C11: reads a feed to its end through $PINFEED_ADDRESS.
 * client_c_test SPEC BATCHES SAMPLES: exit status 0 when the feed held so many. */
#include <pinfeed/pinfeed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      fprintf(stderr, "line %d: %s is false; last error: %s\n", __LINE__, #condition, pf_last_error()); \
      exit(1);                                                                                          \
    }                                                                                                   \
  } while (0)

static uint32_t read_batch(const pf_feed_info* info, pf_batch* batch, uint64_t index) {
  pf_batch_info batch_info;
  pf_batch_info_init(&batch_info, sizeof batch_info);
  CHECK(pf_get_batch_info(batch, &batch_info) == PF_OK);
  CHECK(batch_info.index == index && batch_info.samples >= 1 && batch_info.samples <= info->batch_size);
  for (uint32_t i = 0; i < info->tensor_count; ++i) {
    pf_tensor tensor;
    pf_tensor_init(&tensor, sizeof tensor);
    CHECK(pf_get_tensor(batch, i, &tensor) == PF_OK);
    CHECK(strlen(tensor.name) > 0 && tensor.device == -1 && (uintptr_t)tensor.data % 512 == 0);
    CHECK(tensor.shape[0] == (int64_t)batch_info.samples && tensor.dims >= 1);
    volatile unsigned char last = ((unsigned char*)tensor.data)[tensor.bytes - 1]; /* all of it is readable */
    (void)last;
  }
  pf_tensor none;
  pf_tensor_init(&none, sizeof none);
  CHECK(pf_get_tensor(batch, info->tensor_count, &none) == PF_INVALID_ARGUMENT);
  return batch_info.samples;
}

int main(int argc, char** argv) {
  CHECK(argc == 4);
  CHECK(pf_version() == PF_VERSION);
  pf_open_options options;
  pf_open_options_init(&options, sizeof options);
  options.spec_json = argv[1];
  pf_feed* feed = NULL;
  CHECK(pf_open(&options, &feed) == PF_OK);
  pf_feed_info info;
  pf_feed_info_init(&info, sizeof info);
  CHECK(pf_get_feed_info(feed, &info) == PF_OK);

  uint64_t batches = 0, samples = 0;
  pf_batch* batch = NULL;
  pf_result result;
  while ((result = pf_next(feed, -1, &batch)) == PF_OK) {
    samples += read_batch(&info, batch, batches++);
    pf_batch_release(batch);
  }
  CHECK(result == PF_OUT_OF_RANGE && batch == NULL);
  CHECK(strcmp(pf_result_name(result), "OUT_OF_RANGE") == 0);
  CHECK(batches == strtoull(argv[2], NULL, 10) && samples == strtoull(argv[3], NULL, 10));

  /* The same batches, with what they are in the same call. */
  CHECK(pf_seek_epoch(feed, 0) == PF_OK);
  pf_batch_info told, asked;
  memset(&told, 0, sizeof told);
  CHECK(pf_next_info(feed, -1, &batch, &told) == PF_INVALID_ARGUMENT); /* and takes no batch */
  pf_batch_info_init(&told, sizeof told);
  pf_batch_info_init(&asked, sizeof asked);
  for (uint64_t index = 0; index < batches; ++index) {
    CHECK(pf_next_info(feed, -1, &batch, &told) == PF_OK);
    CHECK(pf_get_batch_info(batch, &asked) == PF_OK && memcmp(&told, &asked, sizeof told) == 0);
    pf_tensor first;
    pf_tensor_init(&first, sizeof first);
    CHECK(pf_get_tensor(batch, 0, &first) == PF_OK && told.data == first.data && told.index == index);
    pf_batch_release(batch);
  }
  CHECK(pf_next_info(feed, -1, &batch, &told) == PF_OUT_OF_RANGE && batch == NULL);

  size_t needed = 0;
  CHECK(pf_cursor(feed, NULL, 0, &needed) == PF_OUT_OF_RANGE && needed > 1);
  char* cursor = malloc(needed);
  CHECK(cursor != NULL && pf_cursor(feed, cursor, needed, &needed) == PF_OK && strlen(cursor) + 1 == needed);
  free(cursor);
  char* json = NULL;
  CHECK(pf_status_json(NULL, &json) == PF_OK && json[0] == '{');
  pf_free(json);
  pf_close(feed);
  return 0;
}
