package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/countd/countd/internal/program"
)

const (
	// backupSeenFile notes in which targets the node has seen an archive of its cluster's backups.
	backupSeenFile = "backup-seen.json"
	// archivesSeenMax bounds the targets in the file. The oldest go first: a node has few in its life.
	archivesSeenMax = 100
)

type backupSeen struct {
	ClusterID string   `json:"cluster_id"`
	To        []string `json:"to"`
}

// ArchiveSeen reports whether the node has noted an archive of a cluster in a target.
func (d *DataDir) ArchiveSeen(clusterID, to string) (bool, error) {
	seen, err := d.archivesSeen(clusterID)
	return slices.Contains(seen, cleanTarget(to)), err
}

// NoteArchiveSeen makes ArchiveSeen return true for a target, also in later processes. If it cannot read what the node
// noted before, or if that is of another cluster, it replaces it.
func (d *DataDir) NoteArchiveSeen(clusterID, to string) error {
	seen, err := d.archivesSeen(clusterID)
	if to = cleanTarget(to); err == nil && slices.Contains(seen, to) {
		return nil
	}
	seen = append(seen, to)
	seen = seen[max(0, len(seen)-archivesSeenMax):]
	return program.WriteJSON(filepath.Join(d.path, backupSeenFile), backupSeen{clusterID, seen}, (*program.AtomicFile).Commit)
}

// archivesSeen returns the targets in which the node has noted an archive of a cluster, the oldest first.
func (d *DataDir) archivesSeen(clusterID string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(d.path, backupSeenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var seen backupSeen
	if err == nil {
		err = json.Unmarshal(text, &seen)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read in %s where the node has seen an archive: %w", backupSeenFile, err)
	}
	if seen.ClusterID != clusterID {
		return nil, nil
	}
	return seen.To, nil
}

// cleanTarget returns the same text for all spellings of a directory's path.
func cleanTarget(to string) string {
	if strings.Contains(to, "://") {
		return to
	}
	return filepath.Clean(to)
}
