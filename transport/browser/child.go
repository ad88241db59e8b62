package browser

import (
	"errors"
	"fmt"
	"strconv"
)

// Command is the hidden command of the binary that runs Child.
const Command = "run-browser"

// Child becomes the driver or Chromium, as its arguments say: uid, gid, the parent's process id
// (0: not known), the home directory, then the program and its arguments. It returns only if that
// did not work.
func Child(args []string) error {
	if len(args) < 5 {
		return errors.New("this command is for the service's own use")
	}
	var n [3]int
	for i := range n {
		v, err := strconv.Atoi(args[i])
		if err != nil {
			return fmt.Errorf("this command is for the service's own use: %w", err)
		}
		n[i] = v
	}
	return become(n[0], n[1], n[2], args[3], args[4:])
}
