package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/countd/countd/internal/program"
)

// backupSeenFile notes in which target the node has seen an archive of backups.
const backupSeenFile = "backup-seen.json"

type backupSeen struct {
	To string `json:"to"`
}

// ArchiveSeen returns the target in which the node last noted an archive of backups, or "".
func (d *DataDir) ArchiveSeen() (to string, err error) {
	path := filepath.Join(d.path, backupSeenFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var seen backupSeen
	if err == nil {
		err = json.Unmarshal(text, &seen)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read where the node has seen an archive: %w; delete %s if it is damaged", err, path)
	}
	return seen.To, nil
}

// NoteArchiveSeen makes ArchiveSeen return a target, also in later processes.
func (d *DataDir) NoteArchiveSeen(to string) error {
	return program.WriteJSON(filepath.Join(d.path, backupSeenFile), backupSeen{to}, (*program.AtomicFile).Commit)
}
