package wire

// Mix is a bijection in which every bit of x affects every bit of the result. It maps 0 to 0.
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// MixNext adds a constant to x and returns Mix of the sum, so it does not map 0 to 0. The result is
// the number that splitmix64 generates from the state x.
func MixNext(x uint64) uint64 { return Mix(x + 0x9e3779b97f4a7c15) }

// UnmixNext returns the x of which MixNext returns y.
func UnmixNext(y uint64) uint64 {
	y = (y ^ y>>31 ^ y>>62) * 0x319642b2d24d8ec3 // the inverse of 0x94d049bb133111eb modulo 2^64
	y = (y ^ y>>27 ^ y>>54) * 0x96de1b173f119089 // the inverse of 0xbf58476d1ce4e5b9
	return (y ^ y>>30 ^ y>>60) - 0x9e3779b97f4a7c15
}
