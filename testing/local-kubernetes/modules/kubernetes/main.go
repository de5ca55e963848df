// The four Kubernetes programs in one binary: they share nearly all their packages, so one link instead of
// four saves minutes and 300 MB. The name it is called by says which program it is.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// command returns the program of that name, or nil. Only the one that is asked for is constructed:
// their constructors register flags and metrics globally.
func command(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	}
	return nil
}

func main() {
	name := filepath.Base(os.Args[0])
	program := command(name)
	if program == nil {
		fmt.Fprintf(os.Stderr, "%s: call me kube-apiserver, kube-controller-manager, kube-scheduler or kubelet (by a symbolic link)\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(program))
}
