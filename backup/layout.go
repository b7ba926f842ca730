package backup

import (
	"fmt"
	"strings"
)

const (
	backupsDir = "backups/"
	chunksDir  = "chunks/"
	// archiveManifestBytesMax bounds a manifest with its chunks: some 600 GB of snapshots.
	archiveManifestBytesMax = 256 << 20
)

// checkSize returns an error for a file that no run stored, because it is longer than one of its name can be. So memory
// is bounded, whatever is in a target.
func checkSize(name string, size int64) error {
	most := int64(64 << 10) // archiveFile
	switch {
	case strings.HasPrefix(name, chunksDir):
		most = 2 * chunkBytesMax // the header that age adds has some 100 bytes for each recipient
	case strings.HasPrefix(name, backupsDir):
		most = archiveManifestBytesMax + 1<<10
	}
	if size > most {
		return fmt.Errorf("%w: %s has %d bytes, more than %d", ErrIncomplete, name, size, most)
	}
	return nil
}
