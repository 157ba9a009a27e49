import nereid
from app import double

with nereid.serve(double, wait=False) as mesh:
    mesh.save("repository")
