//go:build !race

#include "textflag.h"

// func matchNarrow(a, b *bucket, tag uint64) uint64
//
// The four tags of an aligned 16-byte load and the one of an 8-byte load are
// each read whole, in program order with every other load of the caller.
TEXT ·matchNarrow(SB), NOSPLIT, $0-32
	MOVQ      a+0(FP), AX
	MOVQ      b+8(FP), BX
	MOVQ      tag+16(FP), CX
	MOVQ      CX, X0
	ORQ       $2, CX
	MOVQ      CX, X1
	PSHUFD    $0, X0, X0
	PSHUFD    $0, X1, X1
	MOVOU     0(AX), X2
	MOVQ      16(AX), X3
	MOVOU     0(BX), X4
	MOVQ      16(BX), X5
	PCMPEQL   X0, X2
	PCMPEQL   X0, X3
	PCMPEQL   X1, X4
	PCMPEQL   X1, X5
	PACKSSLW  X3, X2
	PACKSSLW  X5, X4
	PACKSSWB  X4, X2
	PMOVMSKB  X2, AX
	MOVQ      AX, ret+24(FP)
	RET
