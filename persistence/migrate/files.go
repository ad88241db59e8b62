package migrate

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
)

//go:embed sql/*.sql
var embedded embed.FS

// migration is one step of the schema.
type migration struct {
	version  int
	name     string
	up, down string
	checksum [sha256.Size]byte // of up
}

// String returns the migration's file name without suffix.
func (m migration) String() string { return fmt.Sprintf("%04d_%s", m.version, m.name) }

var fileName = regexp.MustCompile(`^(\d{4})_([a-z0-9_]+)\.(up|down)\.sql$`)

// load reads the migrations in the directory sql of files: 1, 2, 3, … without a gap, each
// with its up and down file.
func load(files fs.FS) ([]migration, error) {
	entries, err := fs.ReadDir(files, "sql") // sorted by name
	if err != nil {
		return nil, err
	}
	var all []migration
	for _, e := range entries {
		m := fileName.FindStringSubmatch(e.Name())
		if m == nil {
			return nil, fmt.Errorf("%s is not named NNNN_name.up.sql or NNNN_name.down.sql", e.Name())
		}
		text, err := fs.ReadFile(files, path.Join("sql", e.Name()))
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(text)) == 0 {
			return nil, fmt.Errorf("%s is empty", e.Name())
		}
		version, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, err
		}
		if len(all) == 0 || all[len(all)-1].version != version {
			if version != len(all)+1 {
				return nil, fmt.Errorf("%s comes after version %d", e.Name(), len(all))
			}
			all = append(all, migration{version: version, name: m[2]})
		}
		last := &all[len(all)-1]
		switch {
		case last.name != m[2]:
			return nil, fmt.Errorf("%s has the number of %s", e.Name(), last)
		case m[3] == "up":
			last.up, last.checksum = string(text), sha256.Sum256(text)
		default:
			last.down = string(text)
		}
	}
	for _, m := range all {
		if m.up == "" || m.down == "" {
			return nil, fmt.Errorf("%s needs both files, up and down", m)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no migrations")
	}
	return all, nil
}

// Latest returns the schema version of this binary.
func Latest() int { return len(known) }

// Hash identifies the schema of this binary: it changes with any migration.
func Hash() [sha256.Size]byte {
	h := sha256.New()
	for _, m := range known {
		h.Write(m.checksum[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

var known = func() []migration {
	all, err := load(embedded)
	if err != nil {
		panic("migrate: " + err.Error())
	}
	return all
}()
