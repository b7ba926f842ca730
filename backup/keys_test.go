package backup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/countd/countd/internal/must"
)

// keyPair returns a new identity and its recipient.
func keyPair(t testing.TB) (recipient, identity string) {
	t.Helper()
	key, err := age.GenerateX25519Identity()
	must.Do(t, err)
	return key.Recipient().String(), key.String()
}

func recipientsOf(t testing.TB, keys ...string) *Recipients {
	t.Helper()
	r, err := ReadRecipients(fileOf(t, keys...))
	must.Do(t, err)
	return r
}

func identitiesOf(t testing.TB, keys ...string) *Identities {
	t.Helper()
	i, err := ReadIdentities(fileOf(t, keys...))
	must.Do(t, err)
	return i
}

func fileOf(t testing.TB, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	must.Do(t, os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return name
}

// A byte of a sealed chunk that is another, or missing, is found. So is a chunk that stands in for another one.
func TestDamageOfSealedChunksIsFound(t *testing.T) {
	public, private := keyPair(t)
	target, c := newMemTarget(), newMemCluster(1)
	c.states[1] = noise(1, 2000)
	a, err := CreateArchive(t.Context(), target, c.id, recipientsOf(t, public))
	must.Do(t, err)
	a.cutting = newCutting(64, 256, 1024)
	saved, err := a.Backup(t.Context(), c, Report{})
	must.Do(t, err)
	keys := identitiesOf(t, private)
	check := func() error {
		a, err := OpenArchive(t.Context(), target, keys)
		must.Do(t, err)
		if _, err := a.Verifier().Verify(t.Context(), saved.Manifest); err != nil {
			return err
		}
		b, err := a.Open(t.Context(), saved.Name)
		must.Do(t, err)
		return b.Check(t.Context(), &b.Keyspaces[0].Files[0])
	}
	must.Do(t, check())
	last := []byte(nil)
	for name, body := range target.copied() {
		if !strings.HasPrefix(name, chunksDir) {
			continue
		}
		if !strings.HasPrefix(string(body), "age-encryption.org/v1\n") {
			t.Fatalf("%s is not sealed", name)
		}
		step := 1
		if last != nil { // one chunk byte by byte, others here and there
			step = 37
		}
		for at := 0; at < len(body); at += step {
			for what, changed := range map[string][]byte{"flipped": must.Flipped(body, at), "cut": body[:at]} {
				must.Do(t, target.Put(t.Context(), name, changed))
				if err := check(); !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrNoIdentity) {
					t.Fatalf("byte %d %s: %v", at, what, err)
				}
			}
		}
		if last != nil {
			must.Do(t, target.Put(t.Context(), name, last))
			if err := check(); !errors.Is(err, ErrIncomplete) {
				t.Errorf("another chunk: %v", err)
			}
		}
		must.Do(t, target.Put(t.Context(), name, body))
		last = body
	}
	must.Do(t, check())
}

// A backup can be read by each of its recipients, also if earlier backups had others. Backups share chunks only if their
// recipients are the same.
func TestChangedRecipients(t *testing.T) {
	target, c := newMemTarget(), newMemCluster(1)
	c.states[1] = noise(1, 3000)
	publicA, privateA := keyPair(t)
	publicB, privateB := keyPair(t)
	save := func(keys ...string) *Saved {
		t.Helper()
		a, err := CreateArchive(t.Context(), target, c.id, recipientsOf(t, keys...))
		must.Do(t, err)
		a.cutting = newCutting(64, 256, 1024)
		saved, err := a.Backup(t.Context(), c, Report{})
		must.Do(t, err)
		return saved
	}
	read := func(s *Saved, i *Identities) error {
		a, err := OpenArchive(t.Context(), target, i)
		must.Do(t, err)
		_, err = a.Verifier().Verify(t.Context(), s.Manifest)
		return err
	}
	first, again, both, swapped := save(publicA), save(publicA), save(publicA, publicB), save(publicB, publicA)
	if first.Chunks == 0 || again.Chunks != 0 || both.Chunks != first.Chunks || swapped.Chunks != 0 {
		t.Errorf("stored %d chunks, then %d, %d and %d", first.Chunks, again.Chunks, both.Chunks, swapped.Chunks)
	}
	a, b := identitiesOf(t, privateA), identitiesOf(t, privateB)
	must.Do(t, read(first, a))
	must.Do(t, read(both, a))
	must.Do(t, read(both, b))
	must.Do(t, read(first, identitiesOf(t, privateB, privateA)))
	if err := read(first, b); !errors.Is(err, ErrNoIdentity) || errors.Is(err, ErrIncomplete) {
		t.Errorf("with the identity of others: %v", err)
	}
	if err := read(first, nil); !errors.Is(err, ErrSealed) || errors.Is(err, ErrIncomplete) {
		t.Errorf("without an identity: %v", err)
	}
	pruner, err := OpenArchive(t.Context(), target, nil)
	must.Do(t, err)
	_, err = pruner.Prune(t.Context(), Keep{Hours: 1}, "")
	must.Do(t, err)
	list, err := pruner.List(t.Context())
	must.Do(t, err)
	for _, e := range list {
		must.Do(t, pruner.CheckThere(t.Context(), e.Manifest))
		must.Do(t, read(&Saved{Manifest: e.Manifest}, a))
	}
}

// A sealed archive stays sealed, and another one is never sealed.
func TestNoMixture(t *testing.T) {
	public, _ := keyPair(t)
	r := recipientsOf(t, public)
	for _, sealed := range []bool{true, false} {
		target, c := newMemTarget(), newMemCluster(1)
		c.states[1] = noise(1, 3000)
		own, other, want := r, (*Recipients)(nil), "is sealed"
		if !sealed {
			own, other, want = nil, r, "is not sealed"
		}
		a, err := CreateArchive(t.Context(), target, c.id, own)
		must.Do(t, err)
		if _, err := CreateArchive(t.Context(), target, c.id, other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sealed %t: %v", sealed, err)
		}
		// Two nodes may create an archive at once. The one whose archive.json is replaced stores no backup.
		text, err := archiveBody{archiveFormat, c.id, !sealed}.text()
		must.Do(t, err)
		must.Do(t, target.Put(t.Context(), archiveFile, text))
		if _, err := a.Backup(t.Context(), c, Report{}); err == nil {
			t.Errorf("sealed %t: a backup after another node's", sealed)
		}
		was, err := archiveBody{archiveFormat, c.id, sealed}.text()
		must.Do(t, err)
		must.Do(t, target.Put(t.Context(), archiveFile, was))
		saved, err := a.Backup(t.Context(), c, Report{})
		must.Do(t, err)
		must.Do(t, target.Put(t.Context(), archiveFile, text))
		b, err := OpenArchive(t.Context(), target, nil)
		must.Do(t, err)
		if _, err := b.Open(t.Context(), saved.Name); !errors.Is(err, ErrIncomplete) {
			t.Errorf("sealed %t: opened a backup of the other sort: %v", sealed, err)
		}
	}
}

func TestFilesOfKeys(t *testing.T) {
	public, private := keyPair(t)
	hybrid, err := age.GenerateHybridIdentity()
	must.Do(t, err)
	if recipientsOf(t, "# ours", public, "", public).id != recipientsOf(t, public).id {
		t.Error("the same recipients have another hash")
	}
	for name, lines := range map[string][]string{"empty": {"# none"}, "private": {private}, "other": {"ssh-ed25519 AAAA"}, "mixture": {public, hybrid.Recipient().String()}} {
		if _, err := ReadRecipients(fileOf(t, lines...)); err == nil || !strings.Contains(err.Error(), "no file of age recipients") || strings.Contains(err.Error(), private) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, lines := range map[string][]string{"empty": {""}, "public": {public}, "other": {"x"}} {
		if _, err := ReadIdentities(fileOf(t, lines...)); err == nil || !strings.Contains(err.Error(), "no file of age identities") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadRecipients("/nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := ReadIdentities("/nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
