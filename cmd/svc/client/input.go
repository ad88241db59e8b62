package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// maxArgs is the greatest size of arguments, that of a request body.
const maxArgs = 2 << 20

// readArgs reads a JSON object: text itself, @ and the name of a file, or - for standard
// input.
func readArgs(ctx context.Context, in io.Reader, text string) (json.RawMessage, error) {
	b, err := readText(ctx, in, text)
	if err == nil {
		err = checkObject(b)
	}
	return bytes.TrimSpace(b), err
}

// readJSON reads any JSON value in the same way.
func readJSON(ctx context.Context, in io.Reader, text string) (json.RawMessage, error) {
	b, err := readText(ctx, in, text)
	if err == nil && !json.Valid(b) {
		err = errors.New("must be JSON")
	}
	return bytes.TrimSpace(b), err
}

func readText(ctx context.Context, in io.Reader, text string) ([]byte, error) {
	name, is := strings.CutPrefix(text, "@")
	switch {
	case is:
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	case text == "-":
		name = "the input"
	default:
		return []byte(text), nil
	}
	b, err := awaited(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(in, maxArgs+1)) })
	if err == nil && len(b) > maxArgs {
		err = fmt.Errorf("%s has more than %d bytes", cli.Visible(name), maxArgs)
	}
	return b, err
}

func checkObject(b []byte) error {
	if !json.Valid(b) || !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		return errors.New("must be a JSON object")
	}
	return nil
}

func isYes(answer string) bool {
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

var errInterrupted = errors.New("interrupted")

// awaited returns what read returns. It does not wait for it any longer when the user interrupts the
// command: a read of a terminal cannot be ended, and ends with the process.
func awaited[V any](ctx context.Context, read func() (V, error)) (V, error) {
	if ctx.Err() != nil {
		var none V
		return none, errInterrupted
	}
	type result struct {
		v   V
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := read()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none V
		return none, errInterrupted
	}
}

// isTerminal reports whether r is a terminal.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// confirm asks on the terminal, on standard error.
func confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	fmt.Fprint(cmd.ErrOrStderr(), question+" [y/N] ")
	answer, err := awaited(cmd.Context(), func() (string, error) { return bufio.NewReader(cmd.InOrStdin()).ReadString('\n') })
	switch {
	case errors.Is(err, errInterrupted):
		return fmt.Errorf("%w: nothing was sent", err)
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case !isYes(answer):
		return errors.New("nothing was sent")
	}
	return nil
}
