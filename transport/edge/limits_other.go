//go:build !unix

package edge

func isTooManyFiles(error) bool { return false }
