package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"filippo.io/age"
)

// Recipients are the public keys that an archive is sealed for. Nil stands for an archive that is not sealed.
type Recipients struct {
	all []age.Recipient
	id  string // hash of the keys, which Manifest.SealedFor has
}

// ReadRecipients reads a file with an age recipient in each line.
func ReadRecipients(file string) (*Recipients, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the recipients: %w", err)
	}
	all, err := age.ParseRecipients(bytes.NewReader(text))
	if err == nil {
		_, err = age.Encrypt(io.Discard, all...) // it refuses recipients that do not go together
	}
	if err != nil {
		return nil, fmt.Errorf("%s is no file of age recipients, a public key age1… in each line: %w", file, err)
	}
	var keys []string
	for _, r := range all {
		keys = append(keys, fmt.Sprint(r)) // the key, in the form that it has in the file
	}
	slices.Sort(keys)
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(keys), "\n")))
	return &Recipients{all, hex.EncodeToString(sum[:])}, nil
}

func (r *Recipients) sealedFor() string {
	if r == nil {
		return ""
	}
	return r.id
}

// Identities are private keys that open what was sealed. Nil opens nothing.
type Identities struct{ all []age.Identity }

// ReadIdentities reads a file with an age identity in each line.
func ReadIdentities(file string) (*Identities, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the identities: %w", err)
	}
	all, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s is no file of age identities, a private key AGE-SECRET-KEY-1… in each line: %w", file, err)
	}
	return &Identities{all}, nil
}

var (
	// ErrSealed is returned for a sealed backup that cannot be read without identities.
	ErrSealed = errors.New("the backup is sealed, and no identity was given")
	// ErrNoIdentity is returned for a backup that was sealed for others than the identities.
	ErrNoIdentity = errors.New("none of the identities opens it")
)

// encrypt returns the bytes of an age file.
func (r *Recipients) encrypt(plain []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, r.all...)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot seal: %w", err)
	}
	return out.Bytes(), nil
}

// decrypt returns what encrypt was given. Damage in the part of the file that is for the recipients looks like a wrong
// identity.
func (i *Identities) decrypt(sealed []byte) ([]byte, error) {
	if i == nil {
		return nil, ErrSealed
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), i.all...)
	var other *age.NoIdentityMatchError
	if errors.As(err, &other) {
		return nil, fmt.Errorf("%w: it was sealed for others, or is damaged", ErrNoIdentity)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// storedName returns the name of a chunk: the SHA-256 of its plain bytes, or of the recipients and that if it is sealed.
// So a backup reuses only chunks that its own recipients can read.
func storedName(sealedFor, plainSHA256 string) string {
	if sealedFor == "" {
		return plainSHA256
	}
	sum := sha256.Sum256([]byte(sealedFor + plainSHA256))
	return hex.EncodeToString(sum[:])
}
