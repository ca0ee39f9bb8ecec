/* SPDX-License-Identifier: Apache-2.0
 * The compiled kernels as bytes of the library. */
        .section .rodata
        .balign 64
        .globl pf_convert_image_fatbin
        .hidden pf_convert_image_fatbin
        .type pf_convert_image_fatbin, @object
pf_convert_image_fatbin:
        .incbin PINFEED_FATBIN
        .size pf_convert_image_fatbin, . - pf_convert_image_fatbin
        .section .note.GNU-stack, "", @progbits
