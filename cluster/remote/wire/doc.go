// Package wire is generated from wire.proto: the frames between members of a cluster. Only
// package remote uses it.
package wire

//go:generate protoc -I ../../.. --go_out=../../.. --go_opt=paths=source_relative --go-grpc_out=../../.. --go-grpc_opt=paths=source_relative cluster/remote/wire/wire.proto
