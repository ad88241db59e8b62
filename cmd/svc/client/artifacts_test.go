package client

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files of a run are listed and saved, never outside the directory and never over another file.
func TestArtifacts(t *testing.T) {
	const run, file = "0193f111-0000-7000-8000-00000000a001", "0193f111-0000-7000-8000-00000000f11e"
	path := "/v1/runs/" + run + "/artifacts"
	artifact := object{"id": file, "kind": "html", "name": "Report.html", "size": 9, "created_at": "2030-01-02T03:04:05Z"}
	recorded(t, map[string]any{"GET " + path: object{"items": []object{artifact}}, "GET " + path + "/" + file: object{}})
	dir := t.TempDir()
	call := func(code int, want string, args ...string) {
		t.Helper()
		var out, errs strings.Builder
		if got := execute(t.Context(), append([]string{"runs", "artifacts", run}, args...), nil, &out, &errs); got != code || !strings.Contains(out.String()+errs.String(), want) {
			t.Errorf("%q: exit code %d\n%s%s", args, got, out.String(), errs.String())
		}
	}
	call(0, "Report.html")
	call(0, `"kind": "html"`, "--json")
	call(0, "Report.html", "--save", dir)
	if b, err := os.ReadFile(filepath.Join(dir, "Report.html")); err != nil || len(b) == 0 {
		t.Errorf("%q, %v", b, err)
	}
	call(1, "exists", "--save", dir)
	if b, err := os.ReadFile(filepath.Join(dir, "Report.html")); err != nil || len(b) == 0 {
		t.Errorf("the file that was there is %q, %v", b, err)
	}
	call(1, "--save", "--save", filepath.Join(dir, "none"))
	artifact["name"] = "../out.html"
	call(1, "escapes", "--save", dir)
}
