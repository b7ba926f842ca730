package backup

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// sealing turns chunks into the bytes that a target stores, and back. Its methods may be called concurrently.
type sealing struct {
	encoder    *zstd.Encoder
	decoder    *zstd.Decoder
	recipients *Recipients // of new chunks; nil not to encrypt
	identities *Identities
}

func newSealing(r *Recipients) (*sealing, error) {
	// A chunk is checked by its hash, so it needs no further checksum. Rows rarely repeat others, but their bytes are not
	// equally frequent: without the entropy of all literals, they would not become smaller at all.
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithAllLitEntropyCompression(true),
		zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(workers))
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(workers), zstd.WithDecoderMaxMemory(2*chunkBytesMax))
	if err != nil {
		return nil, err
	}
	return &sealing{encoder: encoder, decoder: decoder, recipients: r}, nil
}

// seal returns the bytes to store for a chunk.
func (s *sealing) seal(plain []byte) ([]byte, error) {
	packed := s.encoder.EncodeAll(plain, make([]byte, 0, len(plain)))
	if s.recipients == nil {
		return packed, nil
	}
	return s.recipients.encrypt(packed)
}

// open returns the chunk that was sealed, for recipients if encrypted. The caller compares it with its hash.
func (s *sealing) open(sealed []byte, encrypted bool) (_ []byte, err error) {
	if encrypted {
		if sealed, err = s.identities.decrypt(sealed); err != nil {
			return nil, fmt.Errorf("cannot unseal it: %w", err)
		}
	}
	plain, err := s.decoder.DecodeAll(sealed, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot decompress it: %w", err)
	}
	return plain, nil
}
