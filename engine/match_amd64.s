//go:build !race

#include "textflag.h"

// func matchNarrow(a, b *bucket, tag uint64) uint64
//
// The four tags of an aligned 16-byte load and the one of an 8-byte load are
// each read whole, in program order with every other load of the caller.
TEXT ·matchNarrow(SB), NOSPLIT, $0-32
	MOVQ       a+0(FP), AX
	MOVQ       b+8(FP), BX
	MOVQ       tag+16(FP), CX
	PREFETCHT0 (BX)
	MOVQ       CX, X0
	PSHUFD     $0, X0, X0
	MOVOU      0(AX), X1
	MOVQ       16(AX), X2
	PCMPEQL    X0, X1
	PCMPEQL    X0, X2
	PACKSSLW   X2, X1
	PACKSSWB   X1, X1
	PMOVMSKB   X1, AX
	ANDL       $0x1F, AX
	JEQ        second
	MOVQ       AX, ret+24(FP)
	RET

second:
	ORQ      $2, CX
	MOVQ     CX, X0
	PSHUFD   $0, X0, X0
	MOVOU    0(BX), X1
	MOVQ     16(BX), X2
	PCMPEQL  X0, X1
	PCMPEQL  X0, X2
	PACKSSLW X2, X1
	PACKSSWB X1, X1
	PMOVMSKB X1, AX
	ANDL     $0x1F, AX
	SHLQ     $8, AX
	MOVQ     AX, ret+24(FP)
	RET
