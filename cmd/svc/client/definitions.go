package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/flow/source"
	"agentsvc/schemas/problem"
)

// document is a manifest or a definition that a command sends.
type document struct {
	body json.RawMessage
	// explain completes an error of the service about the document. nil: there is nothing to add.
	explain func(error) error
}

// explained returns err, completed if it is about the document.
func (d document) explained(err error) error {
	if err == nil || d.explain == nil {
		return err
	}
	return d.explain(err)
}

// definitionFile is a definition in a file.
type definitionFile struct {
	*source.Document
	name string
}

// checkedFile is a definition that was checked, with its faults and warnings in the order of
// their places.
type checkedFile struct {
	*definitionFile
	faults, warnings []placed
}

// placed is a fault or a warning at a place of a file.
type placed struct {
	Path    string `json:"path"`
	Message string `json:"message"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
}

// rootPath is how paths in a definition begin, as in answers of the service.
const rootPath = "definition"

// line returns the place and the message as compilers write them.
func (p *placed) line(name, kind string) string {
	path := p.Path
	if path != "" {
		path += ": "
	}
	return fmt.Sprintf("%s:%d:%d: %s%s%s", cli.Visible(name), p.Line, p.Column, kind, cli.Visible(path), cli.Visible(p.Message))
}

// faultsError is the error of a definition with faults.
type faultsError struct {
	name   string
	faults []placed
}

func (e *faultsError) Error() string {
	lines := []string{e.head()}
	for i := range e.faults {
		lines = append(lines, e.faults[i].line(e.name, ""))
	}
	return strings.Join(lines, "\n")
}

func (e *faultsError) head() string {
	return fmt.Sprintf("%s has %s", cli.Visible(e.name), counted(len(e.faults), "fault"))
}

// Explain completes an error as --json shows it.
func (e *faultsError) Explain(r *cli.Reported) {
	r.Code, r.Detail = "VALIDATION", e.head()
	for _, f := range e.faults {
		r.Errors = append(r.Errors, f)
	}
}

func (f *checkedFile) fault() error { return &faultsError{f.name, f.faults} }

// readSource reads a definition. If it cannot be read, the error is a *faultsError with the one
// place.
func readSource(name string, text []byte) (*definitionFile, error) {
	if len(strings.TrimSpace(string(text))) == 0 {
		return nil, &faultsError{name, []placed{{Message: "is empty", Line: 1, Column: 1}}}
	}
	d, err := source.Read(text)
	var bad *source.Error
	if errors.As(err, &bad) {
		return nil, &faultsError{name, []placed{{Message: bad.Message, Line: bad.At.Line, Column: bad.At.Column}}}
	}
	if err != nil {
		return nil, err
	}
	return &definitionFile{d, name}, nil
}

// check validates a definition.
func (f *definitionFile) check(ctx context.Context) (*checkedFile, error) {
	r, err := flow.Validate(ctx, rootPath, f.JSON)
	if err != nil {
		return nil, err
	}
	return &checkedFile{f, f.places(r.Faults), f.places(r.Warnings)}, nil
}

func (f *definitionFile) places(fields []problem.Field) []placed {
	out := []placed{}
	for _, field := range fields {
		at := f.At(field.Path, rootPath)
		out = append(out, placed{field.Path, field.Message, at.Line, at.Column})
	}
	slices.SortStableFunc(out, func(a, b placed) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return out
}

// checkFile reads and validates the definition in a file, or in the input if its name is "-".
func checkFile(cmd *cobra.Command, name string) (*checkedFile, error) {
	text := "@" + name
	if name == "-" {
		text, name = "-", "the input"
	}
	b, err := readText(cmd.Context(), cmd.InOrStdin(), text)
	if err != nil {
		return nil, err
	}
	d, err := readSource(name, b)
	if err != nil {
		return nil, err
	}
	return d.check(cmd.Context())
}

// namesFile reports whether an argument names a file and not a thing of the service.
func namesFile(arg string) bool {
	if arg == "-" || strings.ContainsRune(arg, os.PathSeparator) || slices.Contains([]string{".json", ".yaml", ".yml"}, strings.ToLower(filepath.Ext(arg))) {
		return true
	}
	info, err := os.Stat(arg)
	return err == nil && !info.IsDir()
}
