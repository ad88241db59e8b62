package migrate

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestLoadRefusesFilesThatDoNotFitTogether(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for _, tt := range []struct {
		name  string
		files fstest.MapFS
		words string
	}{
		{"none", fstest.MapFS{"sql": {Mode: 0o755 | 1<<31}}, "no migrations"},
		{"a strange name", fstest.MapFS{"sql/one.sql": file("x")}, "is not named"},
		{"a gap", fstest.MapFS{"sql/0001_a.up.sql": file("x"), "sql/0001_a.down.sql": file("x"), "sql/0003_c.up.sql": file("x")}, "comes after version 1"},
		{"not from one", fstest.MapFS{"sql/0002_a.up.sql": file("x")}, "comes after version 0"},
		{"a number twice", fstest.MapFS{"sql/0001_a.up.sql": file("x"), "sql/0001_b.up.sql": file("x")}, "has the number of"},
		{"no way down", fstest.MapFS{"sql/0001_a.up.sql": file("x")}, "needs both files"},
		{"no way up", fstest.MapFS{"sql/0001_a.down.sql": file("x")}, "needs both files"},
		{"empty", fstest.MapFS{"sql/0001_a.up.sql": file(" \n")}, "is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := load(tt.files); err == nil || !strings.Contains(err.Error(), tt.words) {
				t.Fatalf("got %v", err)
			}
		})
	}
}
