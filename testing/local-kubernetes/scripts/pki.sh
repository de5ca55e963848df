#!/bin/sh
# Usage: pki.sh FOLDER NODES
# Makes the certificate authority, the key for ServiceAccount tokens, and for every part a certificate and a
# kubeconfig. What exists is kept. Addresses come from the environment (K8S_*).
# Elliptic-curve keys: a dozen of them take less than a second.
set -eu
umask 077
folder=$1 nodes=$2
cd "$folder"

new_key() { openssl ecparam -name prime256v1 -genkey -noout; }

if [ ! -f ca.crt ]; then
    rm -f ./*.crt ./*.kubeconfig # of an authority that was never finished
    new_key >ca.key
    openssl req -x509 -new -key ca.key -days 3650 -subj /CN=valkey-operator-local-ca -out ca.crt.new \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
    mv ca.crt.new ca.crt
fi
if [ ! -f sa.pub ]; then
    new_key >sa.key
    openssl pkey -in sa.key -pubout -out sa.pub.new
    mv sa.pub.new sa.pub
fi

certificate() { # name subject usage [alternative names]
    [ ! -f "$1.crt" ] || return 0
    new_key >"$1.key"
    openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
    {
        echo basicConstraints=critical,CA:FALSE
        echo keyUsage=critical,digitalSignature
        echo "extendedKeyUsage=$3"
        [ -z "${4:-}" ] || echo "subjectAltName=$4"
    } >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile "$1.ext" \
        -out "$1.crt.new" 2>/dev/null
    rm "$1.csr" "$1.ext"
    mv "$1.crt.new" "$1.crt"
}

kubeconfig() { # name server
    [ ! -f "$1.kubeconfig" ] || return 0
    cat >"$1.kubeconfig.new" <<EOF
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: $2
    certificate-authority-data: $(base64 -w0 ca.crt)
users:
- name: $1
  user:
    client-certificate-data: $(base64 -w0 "$1.crt")
    client-key-data: $(base64 -w0 "$1.key")
contexts:
- name: local
  context:
    cluster: local
    user: $1
current-context: local
EOF
    mv "$1.kubeconfig.new" "$1.kubeconfig"
}

names=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc
names=$names,DNS:kubernetes.default.svc.$K8S_DOMAIN,IP:127.0.0.1,IP:$K8S_GATEWAY,IP:$K8S_SERVICE_IP
certificate apiserver /CN=kube-apiserver serverAuth "$names"
certificate apiserver-kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
certificate front-proxy-client /CN=front-proxy-client clientAuth

client() { # name subject
    certificate "$1" "$2" clientAuth
    kubeconfig "$1" "https://127.0.0.1:$K8S_API_PORT"
}
client admin /O=system:masters/CN=admin
client kube-controller-manager /CN=system:kube-controller-manager
client kube-scheduler /CN=system:kube-scheduler
client dns /CN=system:valkey-operator-local:dns

i=1
while [ "$i" -le "$nodes" ]; do
    certificate "node-$i" "/O=system:nodes/CN=system:node:node-$i" clientAuth,serverAuth \
        "DNS:node-$i,IP:$K8S_NODE_NET.$i"
    # By the bridge, as from another machine: a test can cut a node off from the API server there.
    kubeconfig "node-$i" "https://$K8S_GATEWAY:$K8S_API_PORT"
    i=$((i + 1))
done
